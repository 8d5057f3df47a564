"""Device tokens that app servers register and delete themselves."""

from edge.core.command_writer import Writer
from edge.core.signature import AppRef
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice, RemoveDevice
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.domain.ids import event_id
from services.domain.topics import DEVICE_COMMANDS, device_key
from services.runtime.log.port import NewRecord
from services.runtime.log.topics import partition_of
from services.runtime.process.clock import Clock


class Registrations:
    """Each call returns when every later one sees the change. What is so already stays so."""

    def __init__(self, writer: Writer, clock: Clock, partitions: int) -> None:
        self._writer = writer
        self._clock = clock
        self._partitions = partitions

    async def register(self, app: AppRef, token: str, origin: Origin) -> None:
        command = DeviceCommand(register=RegisterDevice(platform=app.platform))
        await self._append(command, app, token, origin)

    async def remove(self, app: AppRef, token: str, origin: Origin) -> None:
        command = DeviceCommand(remove=RemoveDevice(reason="unregistered"))
        await self._append(command, app, token, origin)

    async def _append(self, command: DeviceCommand, app: AppRef, token: str, origin: Origin) -> None:
        meta = Meta(event_id=event_id(), time_ms=self._clock.now_ms(), writer="edge", origin=origin)
        command.meta.CopyFrom(meta)
        command.appkey, command.token = app.appkey, token
        key = device_key(app.appkey, token)
        partition = partition_of(key, self._partitions)
        await self._writer.settle(NewRecord(DEVICE_COMMANDS.name, partition, key, command.SerializeToString()))
