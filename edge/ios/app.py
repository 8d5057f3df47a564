"""The legacy iOS door: its routes."""

from edge.core.answers import DoorApp, door_app
from edge.core.entry import Entry
from edge.core.idempotency import FirstAnswers
from edge.core.push import Pushes
from edge.core.writer import Writer
from edge.ios.handlers import PushEndpoint, RegisterEndpoint
from edge.ios.registrations import Registrations
from edge.openapi.documents import OPENAPI_PATH, DocumentEndpoint
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.runtime.config import Settings
from services.runtime.ids import MessageIds
from services.runtime.role import Surroundings
from services.runtime.targets import Targets


def ios_app(settings: Settings, around: Surroundings, ids: MessageIds) -> DoorApp:
    writer = Writer(around.log, around.peers)
    targets = Targets(around.peers, settings.partitions)
    pushes = Pushes(writer, targets, ids, around.clock, settings.partitions)
    entry = Entry("ios", PLATFORM_IOS, around.apps, around.keys)
    app = door_app("ios")
    app.add_route("/push", PushEndpoint(entry, FirstAnswers(pushes, around.peers, around.clock, settings.partitions)))
    app.add_route("/register", RegisterEndpoint(entry, Registrations(writer, around.clock, settings.partitions)))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("ios"))
    return app
