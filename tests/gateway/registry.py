"""A registry small enough to script: it folds device commands into a dictionary."""

import asyncio

from protos.registry.v1.devices_pb2 import Device, DeviceCommand
from protos.registry.v1.registry_pb2 import (
    FindDevicesRequest,
    FindDevicesResponse,
    GetDevicesRequest,
    GetDevicesResponse,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceServicer
from services.runtime.follower import decode
from services.runtime.log import Log, Partition
from services.runtime.progress import Progress
from services.runtime.rpc import Context
from services.runtime.topics import DEVICE_COMMANDS


class SmallRegistry(RegistryServiceServicer):
    name = "registry"

    def __init__(self, log: Log, partitions: int) -> None:
        self._log = log
        self._partitions = [Partition(DEVICE_COMMANDS.name, number) for number in range(partitions)]
        self.progress = Progress()
        self.devices: dict[tuple[str, str], Device] = {}

    async def run(self, ready: asyncio.Event) -> None:
        starts = dict.fromkeys(self._partitions, 0)
        self.progress.advance(starts)
        reader = await self._log.open(starts)
        ready.set()
        try:
            while True:
                for record in await reader.read():
                    self._apply(decode(record))
                    self.progress.advance({Partition(record.topic, record.partition): record.offset + 1})
        finally:
            await reader.close()

    def _apply(self, command: DeviceCommand) -> None:
        fresh = Device(appkey=command.appkey, token=command.token, number=len(self.devices))
        device = self.devices.setdefault((command.appkey, command.token), fresh)
        match command.WhichOneof("command"):
            case "register":
                device.attributes.CopyFrom(command.register.attributes)
            case "set_alias":
                device.alias = command.set_alias.alias
            case "clear_alias":
                device.ClearField("alias")
            case "add_tags":
                device.tags[:] = sorted({*device.tags, *command.add_tags.tags})
            case "remove_tags":
                device.tags[:] = sorted({*device.tags} - {*command.remove_tags.tags})
            case "add_stags":
                device.stags[:] = sorted({*device.stags, *command.add_stags.stags})
            case "remove_stags":
                device.stags[:] = sorted({*device.stags} - {*command.remove_stags.stags})
            case "set_attributes":
                device.attributes.MergeFrom(command.set_attributes.attributes)
            case _:
                raise AssertionError(command)

    async def FindDevices(self, request: FindDevicesRequest, context: Context) -> FindDevicesResponse:
        known = [self.devices.get((request.appkey, token)) for token in request.tokens]
        return FindDevicesResponse(numbers_plus_one=[device.number + 1 if device else 0 for device in known])

    async def GetDevices(self, request: GetDevicesRequest, context: Context) -> GetDevicesResponse:
        known = [self.devices.get((request.appkey, token)) for token in request.tokens]
        return GetDevicesResponse(devices=[device for device in known if device])
