"""Two registries with the same shard on one log: one owns it, the other one stands by and takes over."""

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_OPENED, SessionBatch, SessionEvent, SessionFact
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.registry.v1.registry_pb2 import (
    CreateAppRequest,
    ErasePersonRequest,
    FindDevicesRequest,
    GetAppRequest,
    GetDevicesRequest,
    GetTokensRequest,
    ReserveDeviceRequest,
    RevokeDeviceKeyRequest,
    UpdateAppRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Position
from services.domain.apps import AppDirectory, has_epoch
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.role_context import HAZARDOUS
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.topics import APPS, DEVICE_COMMANDS, DEVICES, INSTANCES, SESSIONS, TOPICS, decode
from services.errors import NotOwnerError, UnavailableError
from services.log.port import DelegatingLog, Log, NewRecord, Partition, Record
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.process.clock import ManualClock
from services.registry.main import ROLE, build, open_state
from services.registry.rules import DeviceRules
from services.registry.settings import RegistrySettings
from services.registry.state import AttributeChanges, DeviceState
from services.registry.store import DEVICES_DDL, DEVICES_FILE, DeviceTable
from services.replica import membership, replay
from services.replica.epochs import Epochs
from services.replica.instances import InstanceDirectory
from services.replica.membership import Membership
from services.replica.owner_channel import OwnerChannel
from services.replica.peers import Peers
from services.replica.sqlite_store import SqliteStore
from testkit.persons import applied_erasures, key_ring
from testkit.services import add_servicers, running_services
from testkit.waiting import until, until_holds
from tests.services.registry.conftest import (
    BOUND_S,
    NOON_MS,
    PARTITIONS,
    command_record,
    every_partition,
    records,
    register,
    session_record,
    set_alias,
)

INTERVAL_S = 0.02


class ProcessLog(DelegatingLog):
    """One process's connection to the log. A hanging one holds back what is appended to a topic, as a pause does."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.hanging: frozenset[str] = frozenset()
        self.held: set[str] = set()
        self.released = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if held := self.hanging.intersection(each.topic for each in new_records):
            self.held |= held
            await self.released.wait()
        return await super().append(new_records)

    def hang(self, *topics: str) -> None:
        self.hanging = frozenset(topics)

    def release(self) -> None:
        self.hanging = frozenset()
        self.released.set()


class Registries:
    """Registries of one shard, reached over an OwnerChannel; their addresses are `a` and `b`."""

    def __init__(self, settings: RegistrySettings, log: Log, clock: ManualClock) -> None:
        self.settings, self.log, self.clock = settings, log, clock
        self.servers: dict[str, LocalServer] = {}
        self.logs: dict[str, ProcessLog] = {}
        self.log_age_ms: float | None = 0.0
        self.directory = InstanceDirectory()
        channel: Any = OwnerChannel(self.directory, "registry", 0, "a", self.connect, HAZARDOUS)
        self.peers = Peers({"registry": [channel], "targeting": []}, TOPICS)
        self.stub = RegistryServiceStub(channel)

    async def log_age_elsewhere(self) -> float | None:
        return self.log_age_ms

    def connect(self, address: str) -> Channel:
        return self.servers[address].channel()

    def of(self, address: str) -> Any:
        """Return a stub for one process."""
        return RegistryServiceStub(self.servers[address].channel())

    @asynccontextmanager
    async def running(self, address: str) -> AsyncIterator[None]:
        server, clock = LocalServer(), self.clock
        log = self.logs[address] = ProcessLog(self.log)
        settings = msgspec.structs.replace(self.settings, data_dir=str(self.settings.data / address))
        member = Membership(
            log, clock, "registry", 0, address, address, INTERVAL_S, log_age_elsewhere=self.log_age_elsewhere
        )
        apps = AppDirectory(log)
        context = RoleContext(log, clock, self.peers, MasterKey(bytes(32)).only(ROLE.keys), apps, member)
        role = build(settings, context)
        add_servicers(role, server)
        self.servers[address] = server
        async with running_services([apps, *role.services]):
            yield

    async def until_owner(self, address: str) -> None:
        async with asyncio.timeout(BOUND_S):
            while self.directory.address("registry", 0) != address:
                await self.directory.change.wait()

    async def app(self) -> App:
        """Create an app; try again where a slow machine let the owner's short lease end meanwhile."""
        request = CreateAppRequest(platform=PLATFORM_ANDROID, name="Weather", package="com.example.weather")
        async with asyncio.timeout(BOUND_S):
            while True:
                with suppress(UnavailableError):
                    app: App = (await self.stub.CreateApp(request)).app
                    return app

    async def rename(self, address: str, app: App, name: str) -> None:
        """Have one process change the app; try again while it says that nothing was done, as in `app`."""
        async with asyncio.timeout(BOUND_S):
            while True:
                with suppress(NotOwnerError):
                    await self.of(address).UpdateApp(UpdateAppRequest(appkey=app.appkey, name=name))
                    return

    async def apply(self, *new_records: NewRecord) -> None:
        """Append the records and wait until the owner has applied them."""
        offsets = await self.log.append(new_records)
        positions = [_position(new_record, offset) for new_record, offset in zip(new_records, offsets, strict=True)]
        await self.peers.wait_applied(positions)

    async def numbers(self, app: App, *tokens: str) -> list[int]:
        answer = await self.stub.FindDevices(FindDevicesRequest(appkey=app.appkey, tokens=tokens))
        return [number - 1 for number in answer.numbers_plus_one]


def _position(new_record: NewRecord, offset: int) -> Position:
    return Position(topic=new_record.topic, partition=new_record.partition, offset=offset)


@pytest.fixture
async def registries(
    settings: RegistrySettings, log: Log, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Registries]:
    is_sealed = getattr(request, "param", False)
    log = SealedLog(log, Sealer(key_ring(tmp_path / "persons")), seals=True) if is_sealed else log
    registries = Registries(settings, log, clock)
    following = asyncio.create_task(registries.directory.run(log))
    yield registries
    following.cancel()
    await asyncio.wait([following])


async def test_a_standby_purges_its_files_of_an_erased_person(registries: Registries, tmp_path: Path) -> None:
    registries.log = SealedLog(registries.log, Sealer(key_ring(tmp_path / "keys" / "persons")), seals=True)
    registries.settings = msgspec.structs.replace(registries.settings, erasure_batch_s=1)
    alias = "canary-3d07"
    async with registries.running("a"):
        await registries.until_owner("a")
        async with registries.running("b"):
            app = await registries.app()
            for record in (command_record(register(app, "t1")), command_record(set_alias(app, "t1", alias))):
                await registries.apply(record)
            held = registries.settings.data / "b" / "registry"
            await until_holds(lambda: alias.encode() in b"".join(each.read_bytes() for each in held.iterdir()))
            await registries.stub.ErasePerson(ErasePersonRequest(appkey=app.appkey, alias=alias))

            async def is_purged() -> bool:
                registries.clock.move(1)
                return applied_erasures("registry", "files") == 1

            await until(is_purged)
            assert alias.encode() not in b"".join(each.read_bytes() for each in held.iterdir())


async def test_a_standby_takes_over_what_a_stopped_owner_has_confirmed(registries: Registries) -> None:
    """Devices, their activity, aliases and apps; a standby answers nothing before."""
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(AsyncExitStack())
        await owner.enter_async_context(registries.running("a"))
        await registries.until_owner("a")
        await stack.enter_async_context(registries.running("b"))
        app = await registries.app()
        tokens = [f"t{index}" for index in range(20)]
        await registries.apply(
            *(command_record(register(app, token)) for token in tokens), command_record(set_alias(app, "t1", "alice"))
        )
        numbers = await registries.numbers(app, *tokens)
        partition = command_record(register(app, "t1")).partition
        device = Device(appkey=app.appkey, token="t1", partition=partition, number=numbers[1])
        await registries.apply(session_record(device, SESSION_EVENT_KIND_OPENED, NOON_MS + 9))
        for call in (
            registries.of("b").FindDevices(FindDevicesRequest(appkey=app.appkey, tokens=["t1"])),
            registries.of("b").GetApp(GetAppRequest(appkey=app.appkey)),
            registries.of("b").UpdateApp(UpdateAppRequest(appkey=app.appkey, name="B")),
        ):
            with pytest.raises(NotOwnerError, match="stands by"):
                await call
        stopping = asyncio.create_task(owner.aclose())
        assert await registries.numbers(app, *tokens) == numbers
        await stopping
        await registries.until_owner("b")
        found = await registries.stub.GetTokens(
            GetTokensRequest(appkey=app.appkey, partition=partition, numbers=[numbers[1]])
        )
        assert list(found.active_ms) == [NOON_MS + 9]
        renamed = await registries.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, name="B"))
        assert renamed.app.name == "B"
        await registries.apply(command_record(register(app, "new")))
        assert len({*await registries.numbers(app, "new"), -1}) == 2


@pytest.mark.parametrize(
    ("log_age_ms", "is_answered"), [(600_000.0, True), (0.0, False), (math.inf, False), (None, False)]
)
async def test_an_owner_answers_look_ups_while_the_log_serves_nobody(
    registries: Registries, monkeypatch: pytest.MonkeyPatch, log_age_ms: float | None, is_answered: bool
) -> None:
    """Its lease is over: where the log serves another process, there may be a successor. Changes need the log."""
    monkeypatch.setattr(membership, "_ASK_S", 0.0)
    async with registries.running("a"):
        await registries.until_owner("a")
        app = await registries.app()
        await registries.apply(command_record(register(app, "t")))
        numbers = await registries.numbers(app, "t")
        registries.log_age_ms = log_age_ms
        registries.logs["a"].hang(INSTANCES.name)
        owner = registries.of("a")
        find = FindDevicesRequest(appkey=app.appkey, tokens=["t"])

        async def is_unconfirmed() -> bool:
            with suppress(NotOwnerError):
                await owner.ReserveDevice(ReserveDeviceRequest(appkey=app.appkey, token="new"))
                return False
            return True

        await until(is_unconfirmed)
        if is_answered:
            assert [each - 1 for each in (await owner.FindDevices(find)).numbers_plus_one] == numbers
            assert (await owner.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=["t"]))).devices[0].token == "t"
            assert (await owner.GetApp(GetAppRequest(appkey=app.appkey))).app.appkey == app.appkey
        else:
            with pytest.raises(NotOwnerError, match="not confirmed lately"):
                await owner.FindDevices(find)
        with pytest.raises(NotOwnerError):
            await owner.UpdateApp(UpdateAppRequest(appkey=app.appkey, name="B"))
        registries.logs["a"].release()


@pytest.mark.parametrize("registries", [False, True], indirect=True, ids=["clear", "sealed"])
async def test_what_a_former_owner_writes_late_changes_nothing(registries: Registries) -> None:
    """It was paused before an append; compaction keeps its records, so the owner writes the valid ones again."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(registries.running("a"))
        await registries.until_owner("a")
        second = await stack.enter_async_context(AsyncExitStack())
        await second.enter_async_context(registries.running("b"))
        app = await registries.app()
        await registries.apply(*(command_record(register(app, token)) for token in ("revoked", "t")))
        paused = registries.logs["a"]
        paused.hang(DEVICES.name, APPS.name)
        late = asyncio.create_task(registries.rename("a", app, "late"))
        await registries.log.append([command_record(set_alias(app, "t", "alice"))])
        await until_holds(lambda: paused.held >= {DEVICES.name, APPS.name})
        paused.hang(DEVICES.name, APPS.name, INSTANCES.name)
        await registries.until_owner("b")
        await registries.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, name="B"))
        await registries.stub.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=app.appkey, token="revoked"))
        await registries.apply(command_record(set_alias(app, "t", "bob", NOON_MS + 1)))
        ends = await _ends(registries.log)
        paused.release()
        with pytest.raises(UnavailableError):
            await late
        assert sum((await _ends(registries.log)).values()) > sum(ends.values())
        await until(lambda: _all_valid(registries.log))
        alias_of = await registries.stub.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=["t", "revoked"]))
        assert [(device.token, device.alias) for device in alias_of.devices] == [("t", "bob")]
        await second.aclose()
        await registries.until_owner("a")
        again = await registries.stub.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=["t", "revoked"]))
        assert list(again.devices) == list(alias_of.devices)
        assert (await registries.stub.GetApp(GetAppRequest(appkey=app.appkey))).app.name == "B"
    for address in ("a", "b"):
        settings = msgspec.structs.replace(registries.settings, data_dir=str(registries.settings.data / address))
        compared = await replay.verify(
            functools.partial(open_state, settings),
            settings.state_dir("registry"),
            replay.ReplaySource(registries.log, await registries.log.ends(every_partition())),
        )
        assert compared.equal


async def _ends(log: Log) -> dict[Partition, int]:
    return await log.ends(Partition(DEVICES.name, number) for number in range(PARTITIONS))


async def _all_valid(log: Log) -> bool:
    """Return whether the last record of each key in `devices` and `apps` counts, apart from keys of one record each."""
    highest, last = Epochs(), {}
    for topic, count in ((DEVICES, PARTITIONS), (APPS, 1)):
        for record in await records(log, topic.name, count):
            fact = decode(record)
            if topic is DEVICES or has_epoch(fact):
                admitted = highest.admits(record, fact)
                last[record.topic, record.partition, record.key] = admitted
    return all(admitted or b"/changed/" in key for (_, _, key), admitted in last.items())


def test_a_command_that_was_decided_but_not_written_is_decided_again(tmp_path: Path) -> None:
    """As when another process took over in between, and has ended since; its repetition still counts once."""
    store = SqliteStore(tmp_path / DEVICES_FILE, DEVICES_DDL)
    rules = DeviceRules(DeviceTable(store), lambda appkey: App(appkey=appkey, platform=PLATFORM_ANDROID), 1)
    command = register("1", "t")
    record = Record(DEVICE_COMMANDS.name, 0, 7, b"1/t", command.SerializeToString())
    assert rules.decide(record, command) == rules.decide(record, command) != ()
    assert list(rules.decide(record._replace(offset=8), command)) == []
    store.close()


def test_a_session_may_be_read_before_its_device(tmp_path: Path) -> None:
    """As by a standby, which reads both topics at once: the state is that of a process that reads the device first."""
    device = (
        Record(DEVICES.name, 0, 0, b"", b""),
        DeviceFact(device=Device(appkey="1", token="t", partition=0, number=7)),
    )
    opened = SessionEvent(appkey="1", number=7, time_ms=NOON_MS, kind=SESSION_EVENT_KIND_OPENED)
    session = (Record(SESSIONS.name, 0, 0, b"", b""), SessionFact(batch=SessionBatch(events=[opened])))
    digests = set()
    for name, facts in (("device first", (device, session)), ("session first", (session, device))):
        store = SqliteStore(tmp_path / name, DEVICES_DDL)
        table = DeviceTable(store)
        state = DeviceState(table, AttributeChanges(table.changes), lambda: None, lambda: None)
        for record, fact in facts:
            state.apply(record, fact)
        assert store.rows.execute("SELECT number, active_ms FROM activity").fetchall() == [(7, NOON_MS)]
        digests.add(store.digest())
        store.close()
    assert len(digests) == 1
