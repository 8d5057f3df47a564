"""The v2 door: its routes."""

from edge.core.answers import DoorApp, door_app
from edge.core.push import Pushes
from edge.core.sign import Gate
from edge.core.writer import Writer
from edge.v2.frames import DeviceDoor
from edge.v2.handlers import DeviceEndpoint, Origins, PushEndpoint
from services.runtime.config import Settings
from services.runtime.ids import MessageIds
from services.runtime.role import Surroundings
from services.runtime.targets import Targets


def v2_app(settings: Settings, around: Surroundings, ids: MessageIds) -> DoorApp:
    writer = Writer(around.log, around.peers)
    targets = Targets(around.peers, settings.partitions)
    pushes = Pushes(writer, targets, ids, around.clock, settings.partitions)
    gate = Gate(around.apps, around.keys)
    origins = Origins()
    app = door_app("v2")
    app.add_route("/v2/push", PushEndpoint(gate, around.apps, pushes, around.clock, settings.zone(), origins))
    app.add_route("/device/v1", DeviceEndpoint(DeviceDoor(around, writer, targets, settings.partitions), origins))
    return app
