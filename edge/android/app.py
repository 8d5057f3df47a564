"""The legacy Android door: its routes."""

from edge.android.handlers import AckEndpoint, PushEndpoint, TimedEndpoint, Times
from edge.core.acks import Acks
from edge.core.answers import DoorApp, door_app
from edge.core.broadcasts import Broadcasts
from edge.core.entry import Entry
from edge.core.idempotency import FirstAnswers
from edge.core.push import Pushes
from edge.core.tasks import Tasks
from edge.core.writer import Writer
from edge.openapi.documents import OPENAPI_PATH, DocumentEndpoint
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from services.runtime.config import Settings
from services.runtime.ids import MessageIds
from services.runtime.role import Surroundings
from services.runtime.targets import Targets


def android_app(settings: Settings, min_lead_s: int, around: Surroundings, ids: MessageIds) -> DoorApp:
    """`min_lead_s`: how far ahead a timed message must lie, seconds."""
    writer = Writer(around.log, around.peers)
    targets = Targets(around.peers, settings.partitions)
    pushes = Pushes(writer, targets, ids, around.clock, settings.partitions)
    first_answers = FirstAnswers(pushes, around.peers, around.clock, settings.partitions)
    broadcasts = Broadcasts(around.log, writer, around.peers, around.clock)
    tasks = Tasks(writer, around.peers, around.clock, settings.partitions)
    entry = Entry("android", PLATFORM_ANDROID, around.apps, around.keys)
    app = door_app("android")
    app.add_route("/push", PushEndpoint(entry, first_answers, broadcasts))
    times = Times(around.clock, settings.zone(), min_lead_s)
    app.add_route("/timed_msg", TimedEndpoint(entry, first_answers, tasks, times))
    app.add_route("/getAckInfo", AckEndpoint(entry, Acks(around.apps, around.peers)))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("android"))
    return app
