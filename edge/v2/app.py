"""The v2 door: its routes."""

from edge.core.answers import DoorApp, door_app
from edge.core.idempotency import FirstAnswers
from edge.core.origins import Origins
from edge.core.push import Pushes
from edge.core.sign import Gate
from edge.core.tasks import Tasks
from edge.core.writer import Writer
from edge.openapi.documents import ASYNCAPI_PATH, OPENAPI_PATH, DocumentEndpoint
from edge.v2.device_handlers import InvalidTokensEndpoint, StatisticsEndpoint, TagEndpoint, TagInfoEndpoint
from edge.v2.frames import DeviceDoor
from edge.v2.handlers import DeviceEndpoint, PushEndpoint
from edge.v2.invalid_tokens import InvalidTokens
from edge.v2.reception import Reception
from edge.v2.tags import StringTags
from edge.v2.task_handlers import CancelEndpoint, TaskEndpoint, TaskListEndpoint
from services.runtime.config import Settings
from services.runtime.ids import MessageIds
from services.runtime.role import Surroundings
from services.runtime.targets import Targets


def v2_app(settings: Settings, around: Surroundings, ids: MessageIds) -> DoorApp:
    clock, peers, partitions, zone = around.clock, around.peers, settings.partitions, settings.zone()
    writer = Writer(around.log, peers)
    targets = Targets(peers, partitions)
    first_answers = FirstAnswers(Pushes(writer, targets, ids, clock, partitions), peers, clock, partitions)
    tasks = Tasks(writer, peers, clock, partitions)
    tags = StringTags(writer, peers, clock, partitions)
    origins = Origins("v2")
    reception = Reception(Gate(around.apps, around.keys), origins)
    app = door_app("v2")
    app.add_route("/v2/push", PushEndpoint(reception, around.apps, first_answers, clock, zone))
    app.add_route("/v2/timedtasklist", TaskListEndpoint(reception, tasks, zone))
    app.add_route("/v2/timedtaskdetail", TaskEndpoint(reception, tasks, zone))
    app.add_route("/v2/timed", CancelEndpoint(reception, tasks))
    app.add_route("/v2/device", TagEndpoint(reception, tags))
    app.add_route("/v2/deviceinfo", TagInfoEndpoint(reception, tags))
    app.add_route("/v2/errortoken", InvalidTokensEndpoint(reception, InvalidTokens(peers)))
    app.add_route("/v2/statistics", StatisticsEndpoint(reception, peers.all("analytics")[0], zone))
    app.add_route("/device/v1", DeviceEndpoint(DeviceDoor(around, writer, targets, partitions), origins))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("v2"))
    app.add_route(ASYNCAPI_PATH, DocumentEndpoint("device"))
    return app
