"""The legacy Android door: its routes."""

from edge.android.handlers import AckEndpoint, PushEndpoint, TimedEndpoint, Times
from edge.core.acks import Acks
from edge.core.answers import DoorApp, door_app
from edge.core.authentication import Entry
from edge.core.broadcast_cancel import Broadcasts
from edge.core.idempotency import Idempotency
from edge.core.push import Pushes
from edge.core.tasks import Tasks
from edge.openapi.documents import OPENAPI_PATH, DocumentEndpoint
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from services.domain.audience_resolver import AudienceResolver
from services.domain.command_writer import CommandWriter
from services.domain.ids import MessageIds
from services.domain.role import RoleContext
from services.runtime.process.settings import Settings


def android_app(settings: Settings, min_lead_s: int, context: RoleContext, ids: MessageIds) -> DoorApp:
    """`min_lead_s`: how far ahead a timed message must lie, seconds."""
    writer = CommandWriter("edge", context.log, context.peers, context.clock, settings.partitions)
    targets = AudienceResolver(context.peers, settings.partitions)
    pushes = Pushes(writer, targets, ids, context.clock)
    first_answers = Idempotency(pushes, context.peers, context.clock, settings.partitions)
    broadcasts = Broadcasts(context.log, writer, context.peers)
    tasks = Tasks(writer, context.peers, settings.partitions)
    entry = Entry("android", PLATFORM_ANDROID, context.apps, context.keys)
    app = door_app("android")
    app.add_route("/push", PushEndpoint(entry, first_answers, broadcasts))
    times = Times(context.clock, settings.zone(), min_lead_s)
    app.add_route("/timed_msg", TimedEndpoint(entry, first_answers, tasks, times))
    app.add_route("/getAckInfo", AckEndpoint(entry, Acks(context.apps, context.peers)))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("android"))
    return app
