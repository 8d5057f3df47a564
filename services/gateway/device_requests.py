"""Carries out devices' registrations and requests: appends commands to the log and reads the registry."""

from typing import TYPE_CHECKING

from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import DeviceCommand
from protos.registry.v1.registry_pb2 import FindDevicesRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Origin, Position
from services.domain import ids
from services.domain.device_protocol import (
    Answer,
    Change,
    GetDeviceRequest,
    Hello,
    Ok,
    command,
    device_answer,
    error_answer,
    registration,
)
from services.domain.role import RoleContext
from services.domain.topics import DEVICE_COMMANDS, device_key
from services.gateway.connections import Session
from services.runtime.errors import CarillonError, ConflictError, DeadlineError, InputError, NotFoundError
from services.runtime.log.port import NewRecord, Partition
from services.runtime.log.topics import partition_of
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APPENDED

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub


class DeviceRequests:
    """Registers devices and answers their requests. Commands of many devices share the log's batches."""

    def __init__(self, context: RoleContext, partitions: int) -> None:
        self._context = context
        self._partitions = partitions
        self._unapplied: dict[int, Position] = {}
        self._registries = [RegistryServiceStub(channel) for channel in context.peers.all("registry")]

    def partition(self, appkey: str, token: str) -> int:
        return partition_of(device_key(appkey, token), self._partitions)

    def meta(self, address: str) -> Meta:
        origin = Origin(door="gateway", address=address, request_id=ids.event_id().hex())
        return Meta(event_id=ids.event_id(), time_ms=self._context.clock.now_ms(), writer="gateway", origin=origin)

    async def register(self, hello: Hello, address: str) -> tuple[str, int]:
        """Register a new device; return its token and number. CarillonError: it may be registered all the same."""
        token = ids.new_token()
        change = registration(self.meta(address), hello.app, token, Platform.PLATFORM_ANDROID, hello)
        await self._append_and_wait(change)
        registry = self._registry(self.partition(hello.app, token))
        found = await registry.FindDevices(FindDevicesRequest(appkey=hello.app, tokens=[token]))
        if found.numbers_plus_one[0] == 0:
            raise DeadlineError("the device was registered, but has no number yet")
        number = found.numbers_plus_one[0] - 1
        if self._context.apps.is_revoked(hello.app, self.partition(hello.app, token), number):
            raise ConflictError("the device's key was revoked while it registered")
        return token, number

    async def update(self, hello: Hello, session: Session, address: str) -> None:
        """Store the attributes of a known device's hello, without waiting until the registry has applied them."""
        change = command(hello, self.meta(address), session.appkey, session.token)
        if change is None:
            return
        try:
            self._unapplied[session.partition] = await self._append(change, session.partition)
        except CarillonError as error:
            logger.warning("a device's attributes could not be stored", error=str(error))

    async def answer(self, request: Change | GetDeviceRequest, session: Session, address: str) -> Answer:
        """Carry out a request; a CarillonError becomes an error answer."""
        try:
            if request.id is None:
                raise InputError("input error: id is missing")
            if isinstance(request, GetDeviceRequest):
                return await self._get_device(request.id, session)
            change = command(request, self.meta(address), session.appkey, session.token)
            assert change is not None
            await self._append_and_wait(change)
            return Ok(id=request.id)
        except CarillonError as error:
            if error.result >= 500:
                logger.warning("a device's request failed", request=type(request).__name__, error=str(error))
            return error_answer(request.id, error)

    async def _get_device(self, request_id: int, session: Session) -> Answer:
        if (position := self._unapplied.get(session.partition)) is not None:
            await self._context.peers.wait_applied([position])
        query = GetDevicesRequest(appkey=session.appkey, tokens=[session.token])
        found = await self._registry(session.partition).GetDevices(query)
        if not found.devices:
            raise NotFoundError("input error: token: this device is not registered")
        return device_answer(request_id, found.devices[0])

    async def _append_and_wait(self, change: DeviceCommand) -> None:
        position = await self._append(change, self.partition(change.appkey, change.token))
        await self._context.peers.wait_applied([position])

    async def _append(self, change: DeviceCommand, partition: int) -> Position:
        key = device_key(change.appkey, change.token)
        new_record = NewRecord(DEVICE_COMMANDS.name, partition, key, change.SerializeToString())
        offset = (await self._context.log.append([new_record]))[0]
        if offset < 0:
            offset = (await self._context.log.ends([Partition(new_record.topic, partition)])).popitem()[1] - 1
        APPENDED.labels(DEVICE_COMMANDS.name).inc()
        return Position(topic=new_record.topic, partition=partition, offset=offset)

    def _registry(self, partition: int) -> "RegistryServiceAsyncStub":
        return self._registries[partition % len(self._registries)]
