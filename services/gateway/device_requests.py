"""Carries out devices' registrations and requests: appends commands to the log and reads the registry."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_KEY,
    REGISTRATION_AUTHORITY_TOKEN,
    BeginSession,
    Device,
    DeviceCommand,
)
from protos.registry.v1.registry_pb2 import FindDevicesRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Origin, Position
from services.domain import ids
from services.domain.alias_checks import AliasChecks
from services.domain.command_writer import CommandWriter, device_command
from services.domain.device_protocol.answers import Answer, Ok, device_answer, error_answer
from services.domain.device_protocol.commands import command, registration
from services.domain.device_protocol.frames import (
    AddStagsRequest,
    Change,
    ClearAliasRequest,
    GetDeviceRequest,
    Hello,
    SetAliasRequest,
)
from services.domain.identity import IdentityChecks
from services.domain.limits import check_room
from services.domain.registrations import DeviceQuota, RegistrationRates
from services.domain.role import RoleContext
from services.domain.topics import device_key
from services.errors import CarillonError, ConflictError, DeadlineError, InputError, NotFoundError, UnavailableError
from services.gateway.connection import DeviceConnection
from services.gateway.connections import DeviceSession
from services.log.batcher import Batcher, ByteBudget
from services.log.topics import partition_of
from services.process.logs import logger

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

_MAX_BATCH = 1000
_MAX_WAITING_BYTES = 16 * 1024 * 1024
_OVERHEAD_BYTES = 500


class _NewDevice(NamedTuple):
    """A device to be registered, and the stamped command that registers it."""

    appkey: str
    token: str
    command: DeviceCommand


class ProvenDevice(NamedTuple):
    """A device whose key was proven, and whose number the registry is asked for."""

    appkey: str
    token: str


class _Ping(NamedTuple):
    """A ping that a device was sent, and the future of its answer."""

    payload: bytes
    answered: "asyncio.Future[None]"


class DeviceRequests:
    """Registers devices and answers their requests. Commands of many devices share the log's batches.

    Devices that say hello while others are being registered are registered together, next: one append, one wait until
    they are applied, and one look-up of their numbers. Each registry instance has a queue of its own.
    """

    def __init__(self, context: RoleContext, partitions: int, rates: RegistrationRates) -> None:
        self._context = context
        self._rates = rates
        self._partitions = partitions
        self._writer = CommandWriter("gateway", context.log, context.peers, context.clock, partitions)
        self._quota = DeviceQuota(context.apps, context.peers, context.clock, partitions)
        self._identity = IdentityChecks(context.clock.now_ms)
        self._aliases = AliasChecks(context.peers)
        self._unapplied: dict[int, Position] = {}
        self._orders: dict[int, int] = {}
        self._pings: dict[int, _Ping] = {}
        self._registries = [RegistryServiceStub(channel) for channel in context.peers.all("registry")]
        self._budget = ByteBudget(_MAX_WAITING_BYTES)
        self._registrations: list[Batcher[_NewDevice, int]] = [
            Batcher(partial(self._register, registry), self._budget, _MAX_BATCH) for registry in self._registries
        ]
        self._look_up_budget = ByteBudget(_MAX_WAITING_BYTES)
        self._look_ups: list[Batcher[ProvenDevice, int]] = [
            Batcher(partial(self._look_up, registry), self._look_up_budget) for registry in self._registries
        ]

    def partition(self, appkey: str, token: str) -> int:
        return partition_of(device_key(appkey, token), self._partitions)

    async def registered_number(self, appkey: str, token: str) -> int | None:
        """Return the number that the token's device has or had when it was removed; None: the log has no such token.

        Look-ups of many devices share one call. Any CarillonError: the registry does not answer now.
        """
        shard = self.partition(appkey, token) % len(self._look_ups)
        (number,) = await self.registered_numbers(shard, [ProvenDevice(appkey, token)])
        return None if number < 0 else number

    async def registered_numbers(self, shard: int, devices: Sequence[ProvenDevice]) -> Sequence[int]:
        """Return the numbers of devices of one registry's shard as `registered_number` does, and -1 for None."""
        size = _OVERHEAD_BYTES * len(devices)
        self._look_up_budget.reserve(size)
        return await self._look_ups[shard].put(devices, size)

    async def register(self, hello: Hello, address: str, proven_number: int | None = None) -> tuple[str, int]:
        """Register a new device; return its token and number.

        `proven_number`: the number in the key of a token that the log does not know, which is registered anew.
        TooManyRequestsError: the app has too many devices, or too many register at once. Other errors: the device may
        be registered nevertheless.
        """
        if (app := self._context.apps.get(hello.app)) is not None:
            self._rates.take(app, address)
        is_new = proven_number is None
        token = ids.new_token() if is_new else str(hello.token)
        authority = REGISTRATION_AUTHORITY_TOKEN if is_new else REGISTRATION_AUTHORITY_KEY
        await self._quota.reserve(hello.app, token)
        command = registration(
            hello.app, token, Platform.PLATFORM_ANDROID, hello, authority, proven_number=proven_number or 0
        )
        command.meta.origin.CopyFrom(_origin(address))
        new, partition = _NewDevice(hello.app, token, command), self.partition(hello.app, token)
        size = command.ByteSize() + _OVERHEAD_BYTES
        self._budget.reserve(size)
        (number,) = await self._registrations[partition % len(self._registrations)].put([new], size)
        if number < 0:
            raise DeadlineError("the device was registered, but has no number yet")
        if self._context.apps.is_revoked(hello.app, partition, number):
            raise ConflictError("the device's key was revoked while it registered")
        return token, number

    async def update(self, hello: Hello, session: DeviceSession, address: str) -> None:
        """Store the attributes of a known device's hello, without waiting until the registry has applied them."""
        change = command(hello, session.appkey, session.token)
        if change is None:
            return
        try:
            (position,) = await self._writer.append([device_command(change)], _origin(address))
        except CarillonError as error:
            logger.warning("a device's attributes could not be stored", error=str(error))
        else:
            self._unapplied[session.partition] = position

    async def answer(
        self, request: Change | GetDeviceRequest, connection: DeviceConnection, session: DeviceSession
    ) -> Answer:
        """Carry out a request; a CarillonError becomes an error answer."""
        try:
            if request.id is None:
                raise InputError("input error: id is missing")
            if isinstance(request, GetDeviceRequest):
                return await self._get_device(request.id, session)
            change = command(request, session.appkey, session.token)
            assert change is not None
            if (app := self._context.apps.get(session.appkey)) is not None:
                self._identity.check(app, session.token, request, change)
            if isinstance(request, AddStagsRequest) and (device := await self._find(session)) is not None:
                check_room(device.stags, request.stags)
            change.session = await self._order(connection, session)
            await self._writer.append_and_wait([device_command(change)], _origin(connection.address))
            if isinstance(request, SetAliasRequest | ClearAliasRequest):
                dropped = await self._aliases.check(session.appkey, session.partition, session.number)
                connection.withdraw(dropped)
            return Ok(id=request.id)
        except CarillonError as error:
            if error.result >= 500:
                logger.warning(
                    "a device's request was not carried out; the device was told so and may repeat it",
                    appkey=session.appkey,
                    request=type(request).__name__,
                    error=str(error),
                )
            return error_answer(request.id, error)

    def answered_ping(self, session: DeviceSession, payload: bytes) -> bool:
        """Note a pong; return whether it answers the ping that the connection was sent."""
        ping = self._pings.get(session.connection)
        if ping is None or ping.payload != payload:
            return False
        if not ping.answered.done():
            ping.answered.set_result(None)
        return True

    def forget(self, session: DeviceSession) -> None:
        """Forget a connection that ends; a change that waits for the device's answer to a ping fails."""
        self._orders.pop(session.connection, None)
        if (ping := self._pings.get(session.connection)) is not None and not ping.answered.done():
            ping.answered.set_exception(_lost())

    async def _order(self, connection: DeviceConnection, session: DeviceSession) -> int:
        """Return the number of the connection in the order of the device's connections; see BeginSession.

        UnavailableError: the connection ends before the device has answered the ping.
        """
        if connection.closing_ms is not None:
            raise _lost()
        if (order := self._orders.get(session.connection)) is not None:
            return order
        begin = DeviceCommand(appkey=session.appkey, token=session.token, begin_session=BeginSession())
        (position,) = await self._writer.append([device_command(begin)], _origin(connection.address))
        order = position.offset + 1
        await self._ping(connection, session, str(order).encode())
        if connection.closing_ms is None:
            self._orders[session.connection] = order
        return order

    async def _ping(self, connection: DeviceConnection, session: DeviceSession, payload: bytes) -> None:
        """Return once the device has answered a ping over this connection."""
        if connection.closing_ms is not None:
            raise _lost()
        ping = self._pings[session.connection] = _Ping(payload, asyncio.get_running_loop().create_future())
        connection.send_ping(payload)
        try:
            await ping.answered
        finally:
            del self._pings[session.connection]

    async def _register(self, registry: "RegistryServiceAsyncStub", devices: list[_NewDevice]) -> Sequence[int]:
        """Register the devices; return the number of each, -1 for one that the registry does not have."""
        await self._writer.append_and_wait([device_command(device.command) for device in devices])
        return await self._numbers(registry, [(device.appkey, device.token) for device in devices], removed_too=False)

    async def _look_up(self, registry: "RegistryServiceAsyncStub", devices: list[ProvenDevice]) -> Sequence[int]:
        return await self._numbers(registry, devices, removed_too=True)

    @staticmethod
    async def _numbers(
        registry: "RegistryServiceAsyncStub", devices: Sequence[tuple[str, str]], *, removed_too: bool
    ) -> Sequence[int]:
        """Return the number of each device, given as appkey and token; -1 for one that the registry does not have."""
        tokens: dict[str, list[str]] = defaultdict(list)
        for appkey, token in devices:
            tokens[appkey].append(token)
        requests = [
            FindDevicesRequest(appkey=appkey, tokens=of_app, removed_too=removed_too)
            for appkey, of_app in tokens.items()
        ]
        answers = await asyncio.gather(*map(registry.FindDevices, requests))
        numbers: dict[tuple[str, str], int] = {}
        for request, found in zip(requests, answers, strict=True):
            names = ((request.appkey, token) for token in request.tokens)
            numbers.update(zip(names, found.numbers_plus_one, strict=True))
        return [numbers[device] - 1 for device in devices]

    async def _get_device(self, request_id: int, session: DeviceSession) -> Answer:
        if (position := self._unapplied.get(session.partition)) is not None:
            await self._context.peers.wait_applied([position])
        if (device := await self._find(session)) is None:
            raise NotFoundError("input error: token: this device is not registered")
        return device_answer(request_id, device)

    async def _find(self, session: DeviceSession) -> Device | None:
        query = GetDevicesRequest(appkey=session.appkey, tokens=[session.token])
        found = await self._registry(session.partition).GetDevices(query)
        return found.devices[0] if found.devices else None

    def _registry(self, partition: int) -> "RegistryServiceAsyncStub":
        return self._registries[partition % len(self._registries)]


def _lost() -> UnavailableError:
    return UnavailableError("the connection was lost")


def _origin(address: str) -> Origin:
    return Origin(interface="gateway", address=address, request_id=ids.event_id().hex())
