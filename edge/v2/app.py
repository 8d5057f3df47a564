"""The v2 door: its routes."""

from edge.core.answers import DoorApp, door_app
from edge.core.idempotency import Idempotency
from edge.core.origins import Origins
from edge.core.push import Pushes
from edge.core.signature import Gate
from edge.core.tasks import Tasks
from edge.openapi.documents import ASYNCAPI_PATH, OPENAPI_PATH, DocumentEndpoint
from edge.v2.authentication import Reception
from edge.v2.device.frames import DeviceDoor
from edge.v2.device.handlers import InvalidTokensEndpoint, StatisticsEndpoint, TagEndpoint, TagInfoEndpoint
from edge.v2.device.invalid_tokens import InvalidTokens
from edge.v2.push.handlers import DeviceEndpoint, PushEndpoint
from edge.v2.tags.string_tags import StringTags
from edge.v2.tasks.handlers import CancelEndpoint, TaskEndpoint, TaskListEndpoint
from services.domain.audience_resolver import AudienceResolver
from services.domain.command_writer import CommandWriter
from services.domain.ids import MessageIds
from services.domain.role import RoleContext
from services.runtime.process.settings import Settings


def v2_app(settings: Settings, context: RoleContext, ids: MessageIds) -> DoorApp:
    clock, peers, partitions, zone = context.clock, context.peers, settings.partitions, settings.zone()
    writer = CommandWriter("edge", context.log, peers, clock, partitions)
    targets = AudienceResolver(peers, partitions)
    first_answers = Idempotency(Pushes(writer, targets, ids, clock), peers, clock, partitions)
    tasks = Tasks(writer, peers, partitions)
    tags = StringTags(writer, peers, partitions)
    origins = Origins("v2")
    reception = Reception(Gate(context.apps, context.keys), origins)
    app = door_app("v2")
    app.add_route("/v2/push", PushEndpoint(reception, context.apps, first_answers, clock, zone))
    app.add_route("/v2/timedtasklist", TaskListEndpoint(reception, tasks, zone))
    app.add_route("/v2/timedtaskdetail", TaskEndpoint(reception, tasks, zone))
    app.add_route("/v2/timed", CancelEndpoint(reception, tasks))
    app.add_route("/v2/device", TagEndpoint(reception, tags))
    app.add_route("/v2/deviceinfo", TagInfoEndpoint(reception, tags))
    app.add_route("/v2/errortoken", InvalidTokensEndpoint(reception, InvalidTokens(peers)))
    app.add_route("/v2/statistics", StatisticsEndpoint(reception, peers.all("analytics")[0], zone))
    app.add_route("/device/v1", DeviceEndpoint(DeviceDoor(context, writer, targets, partitions), origins))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("v2"))
    app.add_route(ASYNCAPI_PATH, DocumentEndpoint("device"))
    return app
