"""A registry on an embedded log in a directory of its own, and helpers to write and read its records."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protos.gateway.v1.sessions_pb2 import SessionBatch, SessionEvent, SessionEventKind, SessionFact
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import (
    Attributes,
    ClearAlias,
    Device,
    DeviceCommand,
    DeviceFact,
    RegisterDevice,
    SetAlias,
)
from protos.registry.v1.registry_pb2 import (
    AliasDevice,
    CreateAppRequest,
    FindAliasesRequest,
    FindDevicesRequest,
    GetDevicesRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Position
from services.domain import ids
from services.domain.apps import AppDirectory
from services.domain.master_key import Keys, MasterKey
from services.domain.role import BuiltRole, RoleContext
from services.domain.topics import DEVICE_COMMANDS, DEVICES, SESSIONS, TOPICS, decode, device_key
from services.log.port import Log, NewRecord, Partition, Record
from services.log.sqlite.log import SqliteLog
from services.log.topics import partition_of
from services.net.rpc.caller import UserSocket
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.net.rpc.server import RpcListener, serve
from services.process.clock import ManualClock
from services.process.runner import Service
from services.registry.main import ROLE, build, open_state
from services.registry.settings import RegistrySettings
from services.replica import replay
from services.replica.peers import Peers
from testkit.services import running_services
from tests.services.registry.command import Carillon, Outcome, run

NOON_MS = 1_790_000_000_000
PARTITIONS = 4
BOUND_S = 60


class RunningRegistry:
    """A running registry with its log, its clock, and the peers and stub through which callers see it."""

    def __init__(
        self,
        settings: RegistrySettings,
        log: Log,
        clock: ManualClock,
        servers: Sequence[LocalServer] = (),
        keys: Keys | None = None,
    ) -> None:
        """`servers`: the servers of all instances, if there are several. `keys`: those of the process."""
        self.settings = settings
        self.log = log
        self.clock = clock
        self.keys = MasterKey(bytes(32))
        self.apps = AppDirectory(log)
        servers = servers or [LocalServer()]
        server = servers[settings.shard % len(servers)]
        self.channel: Channel = server.channel()
        self.peers = Peers({"registry": [each.channel() for each in servers], "targeting": []}, TOPICS)
        self.context = RoleContext(log, clock, self.peers, keys or self.keys.only(ROLE.keys), self.apps)
        self.role: BuiltRole = build(settings, self.context)
        for add in self.role.servicers:
            add(server)  # type: ignore[arg-type]
        self.stub = RegistryServiceStub(self.channel)
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        services: list[Service] = [self.apps, *self.role.services]
        for service in services:
            ready = asyncio.Event()
            self.tasks.append(asyncio.create_task(service.run(ready)))
            wait = asyncio.create_task(ready.wait())
            await asyncio.wait([wait, self.tasks[-1]], return_when=asyncio.FIRST_COMPLETED, timeout=BOUND_S)
            wait.cancel()
            if not ready.is_set():
                break

    async def stop(self) -> None:
        for task in reversed(self.tasks):
            task.cancel()
            await asyncio.wait([task], timeout=BOUND_S)

    async def app(self, platform: Any = PLATFORM_ANDROID) -> App:
        request = CreateAppRequest(platform=platform, name="Weather", package="com.example.weather")
        return (await self.stub.CreateApp(request)).app

    async def write(self, *commands: DeviceCommand) -> list[Position]:
        """Append the commands in one batch, as the edge does. Returns their positions."""
        new_records = [command_record(command) for command in commands]
        offsets = await self.log.append(new_records)
        return [
            Position(topic=new_record.topic, partition=new_record.partition, offset=offset)
            for new_record, offset in zip(new_records, offsets, strict=True)
        ]

    async def apply(self, *commands: DeviceCommand) -> None:
        """Append the commands and wait until every role that answers for them has applied them."""
        await self.peers.wait_applied(await self.write(*commands))

    async def report(self, device: Device, kind: SessionEventKind.ValueType, time_ms: int) -> None:
        """Append a session event as the gateway does, and wait until it is applied."""
        new_record = session_record(device, kind, time_ms)
        (offset,) = await self.log.append([new_record])
        await self.peers.wait_applied([Position(topic=new_record.topic, partition=new_record.partition, offset=offset)])

    async def device(self, appkey: str, token: str) -> Device | None:
        found = (await self.stub.GetDevices(GetDevicesRequest(appkey=appkey, tokens=[token]))).devices
        return found[0] if found else None

    async def numbers(self, appkey: str, tokens: Sequence[str]) -> list[int]:
        answer = await self.stub.FindDevices(FindDevicesRequest(appkey=appkey, tokens=tokens))
        return [number - 1 for number in answer.numbers_plus_one]

    async def alias(self, appkey: str, alias: str) -> list[AliasDevice]:
        answer = await self.stub.FindAliases(FindAliasesRequest(appkey=appkey, aliases=[alias]))
        return list(answer.aliases[0].devices)

    async def verify(self) -> replay.ReplayComparison:
        """Compare the live state with one rebuilt from the log."""
        return await replay.verify(
            lambda directory, log: open_state(self.settings, directory, log),
            self.settings.state_dir("registry"),
            replay.ReplaySource(self.log, await self.log.ends(every_partition())),
        )


Start = Callable[..., AbstractAsyncContextManager[RunningRegistry]]


@pytest.fixture
def settings(tmp_path: Path) -> RegistrySettings:
    return RegistrySettings(data_dir=str(tmp_path), partitions=PARTITIONS)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    yield log
    await log.close()


@pytest.fixture
def start(settings: RegistrySettings, log: SqliteLog, clock: ManualClock) -> Start:
    """Return a context manager that runs a registry; each use runs on the same files."""

    @asynccontextmanager
    async def run(
        on: Log = log,
        with_settings: RegistrySettings = settings,
        servers: Sequence[LocalServer] = (),
        keys: Keys | None = None,
    ) -> AsyncIterator[RunningRegistry]:
        running = RunningRegistry(with_settings, on, clock, servers, keys)
        await running.start()
        try:
            yield running
        finally:
            await running.stop()

    return run


@pytest.fixture
async def registry(start: Start) -> AsyncIterator[RunningRegistry]:
    async with start() as running:
        yield running


def every_partition() -> list[Partition]:
    return [Partition(topic.name, n) for topic in TOPICS.values() for n in range(topic.partitions(PARTITIONS))]


def command(app: App | str, token: str, *, at_ms: int = NOON_MS, **what: Any) -> DeviceCommand:
    """Return a command as the edge writes it."""
    appkey = app if isinstance(app, str) else app.appkey
    meta = Meta(event_id=ids.event_id(), time_ms=at_ms, writer="edge")
    return DeviceCommand(meta=meta, appkey=appkey, token=token, **what)


def register(app: App | str, token: str, at_ms: int = NOON_MS, **attributes: str) -> DeviceCommand:
    what = RegisterDevice(platform=PLATFORM_ANDROID, attributes=Attributes(**attributes))
    return command(app, token, at_ms=at_ms, register=what)


def set_alias(app: App | str, token: str, alias: str, at_ms: int = NOON_MS, *, proven: bool = False) -> DeviceCommand:
    return command(app, token, at_ms=at_ms, set_alias=SetAlias(alias=alias, proven=proven))


def clear_alias(app: App | str, token: str, only: str | None = None) -> DeviceCommand:
    return command(app, token, clear_alias=ClearAlias(only_alias=only))


def command_record(what: DeviceCommand) -> NewRecord:
    key = device_key(what.appkey, what.token)
    return NewRecord(DEVICE_COMMANDS.name, partition_of(key, PARTITIONS), key, what.SerializeToString())


def session_record(device: Device, kind: SessionEventKind.ValueType, time_ms: int) -> NewRecord:
    event = SessionEvent(appkey=device.appkey, number=device.number, kind=kind, time_ms=time_ms)
    fact = SessionFact(meta=Meta(event_id=ids.event_id(), time_ms=time_ms), batch=SessionBatch(events=[event]))
    key = device_key(device.appkey, device.token)
    return NewRecord(SESSIONS.name, device.partition, key, fact.SerializeToString())


async def records(log: Log, topic: str, partitions: int = PARTITIONS) -> list[Record]:
    """Return every record of a topic, partition by partition."""
    found: list[Record] = []
    for number in range(partitions):
        partition = Partition(topic, number)
        end = (await log.ends([partition]))[partition]
        if not end:
            continue
        reader = await log.open({partition: 0})
        while not found or found[-1].partition != number or found[-1].offset < end - 1:
            found += await asyncio.wait_for(reader.read(), BOUND_S)
        await reader.close()
    return found


async def device_facts(log: Log) -> list[DeviceFact]:
    """Return every fact of `devices`, without the announcements of owners, which hold none."""
    facts = [decode(record) for record in await records(log, DEVICES.name)]
    return [fact for fact in facts if fact.WhichOneof("fact")]


async def position_of_fact(log: Log, holds: Callable[[Device], bool]) -> Position:
    """Return the position of the first device record that satisfies the condition; wait until there is one."""
    reader = await log.open({Partition(DEVICES.name, number): 0 for number in range(PARTITIONS)})
    async with asyncio.timeout(BOUND_S):
        while True:
            for record in await reader.read():
                if holds(decode(record).device):
                    await reader.close()
                    return Position(topic=record.topic, partition=record.partition, offset=record.offset)


async def alias_cleared(log: Log, token: str) -> Position:
    """Wait until the device has no alias; return the position of that record."""
    return await position_of_fact(log, lambda device: device.token == token and not device.alias)


@pytest.fixture
async def carillon(registry: RunningRegistry) -> AsyncIterator[Carillon]:
    """Return a function that runs `carillon app` with its arguments."""
    user_socket = UserSocket("commands", registry.settings.data / "carillon.sock")
    server = serve([f"unix:{user_socket.inner}"], users=user_socket.users)
    for add in registry.role.servicers:
        add(server)

    async def call(*arguments: str, group: str = "app") -> Outcome:
        return await run(registry.settings.data_dir, *arguments, group=group)

    async with running_services([RpcListener("calls", server), user_socket]):
        yield call
    user_socket.close()
