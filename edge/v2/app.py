"""Routes of the v2 interface."""

from edge.core.admission import Admission, Authenticator, Origins
from edge.core.answers import JsonApi, json_api
from edge.core.idempotency import Idempotency
from edge.core.message_ids import MessageIds
from edge.core.parsing.body import BodyBudget
from edge.core.push import Pushes
from edge.core.quotas import PushQuotas, rate_quotas
from edge.core.replay_protection import ReplayProtection
from edge.core.request_limiter import RequestLimiter
from edge.core.signature import SignatureVerifier
from edge.core.tasks import TaskCalls
from edge.openapi.documents import ASYNCAPI_PATH, OPENAPI_PATH, DocumentEndpoint
from edge.settings import ROLE_NAME
from edge.v2.device_frames import FrameHandler, PossessionCodes
from edge.v2.devices import DeviceEndpoint, InvalidTokens, InvalidTokensEndpoint
from edge.v2.push.handlers import PushEndpoint
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
    ids: MessageIds,
    limiter: RequestLimiter,
    budget: BodyBudget,
    rates_of_devices: RegistrationRates,
    replays: ReplayProtection,
) -> JsonApi:
    """Return the ASGI application. `max_period_s`: longest time to live of a message, seconds."""

    clock, peers, partitions, zone = context.clock, context.peers, settings.partitions, settings.zone()
    writer = CommandWriter(ROLE_NAME, context.log, peers, clock, partitions)
    resolver = TokenAndAliasResolver(peers, partitions)
    rates = rate_quotas(settings, context)
    quotas = PushQuotas(context.apps, rates, peers, clock)
    pushes = Pushes(context.apps, quotas, writer, resolver, ids, clock)
    idempotency = Idempotency(pushes, peers, clock, partitions, limiter)
    tasks = TaskCalls(writer, peers, partitions)
    tags = StringTags(writer, peers, context.apps, partitions)
    origins = Origins("v2", settings.client_addresses())
    authenticator = Authenticator(
        SignatureVerifier(context.apps, context.keys, clock),
        Admission(context.apps, rates, clock),
        origins,
        limiter,
        budget,
        replays,
    )
    registrations = RegistrationLimiter(settings.gateway_registrations_per_s)
    possession = PossessionCodes(context, writer, ids, rates, partitions)
    frames = FrameHandler(context, writer, resolver, partitions, registrations, rates_of_devices, possession)
    app = json_api("v2")
    app.add_route("/v2/push", PushEndpoint(authenticator, context.apps, idempotency, clock, zone, max_period_s))
    app.add_route("/v2/timedtasklist", TaskListEndpoint(authenticator, tasks, zone))
    app.add_route("/v2/timedtaskdetail", TaskEndpoint(authenticator, tasks, zone))
    app.add_route("/v2/timed", CancelEndpoint(authenticator, tasks))
    app.add_route("/v2/device", TagEndpoint(authenticator, tags, context.apps, limiter))
    app.add_route("/v2/deviceinfo", TagInfoEndpoint(authenticator, tags, context.apps, limiter))
    app.add_route("/v2/errortoken", InvalidTokensEndpoint(authenticator, InvalidTokens(peers)))
    app.add_route("/v2/statistics", StatisticsEndpoint(authenticator, peers.all("analytics")[0], zone, limiter))
    app.add_route("/device/v1", DeviceEndpoint(frames, origins))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("v2"))
    app.add_route(ASYNCAPI_PATH, DocumentEndpoint("device"))
    return app
