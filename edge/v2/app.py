"""Routes of the v2 interface."""

from edge.core.admission import Admission
from edge.core.answers import JsonApi, json_api
from edge.core.idempotency import IdempotentPushes
from edge.core.tasks import TaskCalls
from edge.openapi.documents import ASYNCAPI_PATH, OPENAPI_PATH, DocumentEndpoint
from edge.v2.device_frames import FrameHandler, HttpReports, PossessionCodes
from edge.v2.devices import DeviceEndpoint, InvalidTokens, InvalidTokensEndpoint, WebPushKeyEndpoint
from edge.v2.push.handlers import PushEndpoint
from edge.v2.receipts import ReceiptEndpoint, ReceiptIntake
from edge.v2.statistics import StatisticsEndpoint
from edge.v2.tags import StringTags, TagEndpoint, TagInfoEndpoint
from edge.v2.tasks import CancelEndpoint, TaskEndpoint, TaskListEndpoint
from services.domain.command_writer import CommandWriter
from services.domain.registrations import RegistrationLimiter, RegistrationRates
from services.domain.role import RoleContext
from services.domain.settings import Settings
from services.domain.token_resolver import TokenAndAliasResolver


def v2_app(
    settings: Settings,
    max_period_s: int,
    context: RoleContext,
    admission: Admission,
    pushes: IdempotentPushes,
    writer: CommandWriter,
    resolver: TokenAndAliasResolver,
    possession: PossessionCodes,
    rates_of_devices: RegistrationRates,
) -> JsonApi:
    """Return the ASGI application. `max_period_s`: longest time to live of a message, seconds."""
    clock, peers, partitions, zone = context.clock, context.peers, settings.partitions, settings.zone()
    tasks = TaskCalls(writer, peers, partitions)
    tags = StringTags(writer, peers, context.apps, partitions)
    registrations = RegistrationLimiter(settings.gateway_registrations_per_s)
    frames = FrameHandler(context, writer, resolver, partitions, registrations, rates_of_devices, possession)
    app = json_api("v2", admission.note_refusal)
    app.add_route("/v2/push", PushEndpoint(admission, context.apps, pushes, clock, zone, max_period_s))
    app.add_route("/v2/timedtasklist", TaskListEndpoint(admission, tasks, zone))
    app.add_route("/v2/timedtaskdetail", TaskEndpoint(admission, tasks, zone))
    app.add_route("/v2/timed", CancelEndpoint(admission, tasks))
    app.add_route("/v2/device", TagEndpoint(admission, tags, context.apps))
    app.add_route("/v2/deviceinfo", TagInfoEndpoint(admission, tags, context.apps))
    app.add_route("/v2/errortoken", InvalidTokensEndpoint(admission, InvalidTokens(peers)))
    app.add_route("/v2/statistics", StatisticsEndpoint(admission, peers.all("analytics")[0], zone))
    app.add_route("/device/v1", DeviceEndpoint(frames, admission.origins))
    app.add_route("/device/v1/webpush-key", WebPushKeyEndpoint(context.apps))
    receipts = ReceiptIntake(peers, writer, resolver, HttpReports(peers, partitions), clock)
    app.add_route(
        "/channels/v1/receipt/{channel}/{appkey}/{token}", ReceiptEndpoint(context.apps, context.keys, clock, receipts)
    )
    app.add_route(OPENAPI_PATH, DocumentEndpoint("v2"))
    app.add_route(ASYNCAPI_PATH, DocumentEndpoint("device"))
    return app
