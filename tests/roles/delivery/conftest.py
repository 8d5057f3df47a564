"""Delivery and targeting on an embedded log, started, stopped and killed as a process would be; a gateway's view."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from protos.delivery.v1.delivery_pb2 import (
    AppOutcomes,
    AttachRequest,
    AttachResponse,
    Close,
    Connected,
    OutcomeKind,
    PushFact,
    Reports,
)
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import (
    Audience,
    CancelPush,
    Devices,
    Everyone,
    Filter,
    Message,
    PushCommand,
    SendPush,
    StagGroup,
)
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.android.fanout import BACKLOG_WINDOW
from services.delivery.event_writer import EventWriter
from services.delivery.main import build, open_state
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.settings import DeliverySettings
from services.delivery.store import SNAPSHOT, DeliveryStore, Snapshots
from services.domain.apps import AppDirectory
from services.domain.ids import MessageIds, event_id
from services.domain.keys import Keyring
from services.domain.role import BuiltRole, RoleContext
from services.domain.topics import DELIVERIES, DEVICES, PUSH_COMMANDS, PUSHES, TOPICS, decode, device_key
from services.runtime.log.port import Log, NewRecord, Partition, Record
from services.runtime.log.sqlite import SqliteLog
from services.runtime.process.clock import ManualClock
from services.runtime.projection import replay
from services.runtime.rpc.peers import Peers
from services.runtime.rpc.transport import Channel, LocalServer
from services.targeting.main import build as build_targeting
from services.targeting.settings import TargetingSettings
from testkit.dying_role import KilledError, MortalLog, add_servicers, records_of

START_MS = 1_800_000_000_000
PARTITIONS = 2
APP = "1000000001"
OTHER_APP = "1000000002"
BOUND_S = 20.0
RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED
SENT = OutcomeKind.OUTCOME_KIND_SENT
SHOWN = OutcomeKind.OUTCOME_KIND_SHOWN
CLICKED = OutcomeKind.OUTCOME_KIND_CLICKED
FAILED = OutcomeKind.OUTCOME_KIND_FAILED
DROPPED = OutcomeKind.OUTCOME_KIND_DROPPED


class At(NamedTuple):
    """A device of the app."""

    partition: int
    number: int


class Row(NamedTuple):
    """One outcome as recorded."""

    msgid: int
    device: At
    kind: int
    reason: str = ""


class Got(NamedTuple):
    """One message as it reached a connection."""

    connection: int
    msgid: int
    content: str


class BreakingLog(MortalLog):
    """A log whose process dies in the middle of the append that `when` picks, after `keep` of its records."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.when: Callable[[NewRecord], bool] = lambda new_record: False
        self.keep = 0

    def live_again(self) -> None:
        self.when = lambda new_record: False
        self.died.clear()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if self.died.is_set():
            raise KilledError
        if not any(self.when(new_record) for new_record in new_records):
            return await self._log.append(new_records)
        await self._log.append(new_records[: self.keep])
        self.died.set()
        raise KilledError


class Gateway:
    """One Attach stream and what came down it."""

    def __init__(self, channel: Channel) -> None:
        self.got: list[Got] = []
        self.closes: list[Close] = []
        self.responses: list[AttachResponse] = []
        self._channel = channel
        self._up: asyncio.Queue[AttachRequest | None] = asyncio.Queue()
        self._news = asyncio.Condition()
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for response in DeliveryServiceStub(self._channel).Attach(self._requests()):
            async with self._news:
                self.responses.append(response)
                self.closes += response.closes
                for send in response.sends:
                    self.got += _messages(send)
                self._news.notify_all()

    async def _requests(self) -> AsyncIterator[AttachRequest]:
        yield AttachRequest(gateway="test")
        while (request := await self._up.get()) is not None:
            yield request

    def say(self, **parts: Any) -> None:
        self._up.put_nowait(AttachRequest(**parts))

    def connect(self, *devices: tuple[int, At], appkey: str = APP) -> None:
        self.say(connected=[connected(connection, at, appkey) for connection, at in devices])

    def report(self, kind: int, *rows: tuple[int, At], appkey: str = APP, time_ms: int = START_MS) -> None:
        """Rows are (message id, device)."""
        self.say(reports=[reports(kind, rows, appkey, time_ms)])

    def ack(self, *rows: tuple[int, At]) -> None:
        self.report(RECEIVED, *rows)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND_S), self._news:
            await self._news.wait_for(holds)

    async def gets(self, *expected: tuple[int, int]) -> None:
        """Wait until as many messages came as expected, and expect (connection, message id) of all so far."""
        await self.until(lambda: len(self.got) >= len(expected))
        assert [(got.connection, got.msgid) for got in self.got] == list(expected)

    async def gets_at_least(self, count: int) -> None:
        await self.until(lambda: len(self.got) >= count)

    async def drains(self, link: tuple[int, At], msgids: Sequence[int]) -> None:
        """Expect these and no others on a connection that gets nothing else, in order, each window acknowledged."""
        connection, at = link
        start = len(self.got)
        for end in range(start + BACKLOG_WINDOW, start + len(msgids) + BACKLOG_WINDOW, BACKLOG_WINDOW):
            expected = [(connection, msgid) for msgid in msgids[: end - start]]
            await self.until(lambda some=expected: len(self.got) >= start + len(some))  # type: ignore[misc]
            await idle()
            assert [(got.connection, got.msgid) for got in self.got[start:]] == expected
            self.ack(*((msgid, at) for _, msgid in expected[-BACKLOG_WINDOW:]))

    async def leave(self) -> None:
        self._up.put_nowait(None)
        await asyncio.wait_for(self.task, BOUND_S)


@dataclass
class House:
    """A directory, a log and a clock; lives of the process come and go on them."""

    directory: Path
    log: BreakingLog
    clock: ManualClock
    ids: MessageIds
    settings: DeliverySettings
    delivery: LocalServer = field(default_factory=LocalServer)
    targeting: LocalServer = field(default_factory=LocalServer)
    role: BuiltRole = field(default=BuiltRole("none", []))
    shown: Callable[[], None] = field(default=lambda: None)

    # --- lives

    @contextlib.asynccontextmanager
    async def running(self, targeting_hidden: bool = False, registry: Channel | None = None) -> AsyncIterator[None]:
        """Targeting and delivery; a hidden targeting is UNAVAILABLE until `shown()`."""
        self.log.live_again()
        self.delivery, self.targeting = LocalServer(), LocalServer()
        context = self.role_context(registry)
        settings = TargetingSettings(data_dir=str(self.directory), partitions=PARTITIONS, timezone="UTC")
        targeting = build_targeting(settings, context)
        self.role = build(self.settings, context)
        add_servicers(self.role, self.delivery)
        self.shown = lambda: add_servicers(targeting, self.targeting)
        if not targeting_hidden:
            self.shown()
        async with started([context.apps, *targeting.services, *self.role.services], wait=not targeting_hidden):
            yield

    def role_context(self, registry: Channel | None = None) -> RoleContext:
        channels = {
            "targeting": [self.targeting.channel()],
            "delivery": [self.delivery.channel()],
            "registry": [registry or LocalServer().channel()],
        }
        return RoleContext(self.log, self.clock, Peers(channels, TOPICS), Keyring(bytes(32)), AppDirectory(self.log))

    def fold(self) -> DeliveryStore:
        """What the running delivery has folded."""
        return self._snapshots._store

    def events(self) -> EventWriter:
        return self._snapshots._events

    def recorder(self) -> OutcomeRecorder:
        return next(service for service in self.role.services if isinstance(service, OutcomeRecorder))

    @property
    def _snapshots(self) -> Snapshots:
        return next(service for service in self.role.services if isinstance(service, Snapshots))

    @contextlib.asynccontextmanager
    async def gateway(self, channel: Channel | None = None) -> AsyncIterator[Gateway]:
        gateway = Gateway(channel or self.delivery.channel())
        try:
            yield gateway
        finally:
            gateway.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KilledError):
                await gateway.task

    @property
    def snapshot(self) -> Path:
        return self.directory / "delivery" / SNAPSHOT

    def take_snapshot(self) -> bytes | None:
        return self.snapshot.read_bytes() if self.snapshot.exists() else None

    def put_snapshot(self, content: bytes | None) -> None:
        if content is None:
            self.snapshot.unlink(missing_ok=True)
        else:
            self.snapshot.write_bytes(content)

    # --- commands

    def push(self, *devices: At, **changes: Any) -> SendPush:
        """A push to listed devices, or to everyone; each entry of a list has its own id when `id_count` says so."""
        count = changes.get("id_count", 1)
        audience = listed(*devices, own_ids=count > 1) if devices else Audience(everyone=Everyone())
        msgid = self.ids.take(count)
        given = {
            "msgid": msgid,
            "id_count": 1,
            "appkey": APP,
            "platform": PLATFORM_ANDROID,
            "audience": audience,
            "message": Message(is_notif=True, content=f"message {msgid}"),
            "period_s": 3600,
        }
        return SendPush(**{**given, **changes})

    async def command(self, *commands: SendPush | CancelPush, settle: bool = True) -> list[int]:
        """Append as doors do, and wait until delivery has done them; returns the offsets."""
        new_records = [self._draft(command) for command in commands]
        offsets = await self.log.append(new_records)
        if settle:
            await self.settle(offsets[-1])
        return offsets

    def _draft(self, command: SendPush | CancelPush) -> NewRecord:
        envelope = PushCommand(meta=Meta(event_id=event_id(), time_ms=self.clock.now_ms(), writer="edge"))
        (envelope.send if isinstance(command, SendPush) else envelope.cancel).CopyFrom(command)  # type: ignore[arg-type]
        return NewRecord(PUSH_COMMANDS.name, 0, str(command.msgid).encode(), envelope.SerializeToString())

    async def settle(self, offset: int) -> None:
        peers = Peers({"delivery": [self.delivery.channel()]}, TOPICS)
        await peers.wait_applied([Position(topic=PUSH_COMMANDS.name, partition=0, offset=offset)])

    async def send(self, *devices: At, **changes: Any) -> int:
        push = self.push(*devices, **changes)
        await self.command(push)
        return push.msgid

    async def cancel(self, msgid: int, appkey: str = APP) -> None:
        await self.command(CancelPush(msgid=msgid, appkey=appkey))

    async def register(self, *devices: At, stag: str | None = None, appkey: str = APP) -> None:
        """Devices as the registry would write them; returns when targeting knows them."""
        new_records = [_device_draft(at, appkey, stag) for at in devices]
        offsets = await self.log.append(new_records)
        peers = Peers({"targeting": [self.targeting.channel()], "registry": []}, TOPICS)
        await peers.wait_applied(
            Position(topic=new_record.topic, partition=new_record.partition, offset=offset)
            for new_record, offset in zip(new_records, offsets, strict=True)
        )

    async def move(self, seconds: float, steps: int = 1) -> None:
        """Let time pass in steps, and let those who waited for it run."""
        for _ in range(steps):
            self.clock.move(seconds / steps)
            await idle()

    # --- what the log says

    async def records(self, partition: Partition) -> list[Record]:
        return await records_of(self.log, partition)

    async def facts(self, msgid: int) -> list[tuple[str, int]]:
        """(kind, partition) of the push's facts, partition by partition."""
        return [
            (str(fact.WhichOneof("fact")), fact.partition) for fact in await self.push_facts() if fact.msgid == msgid
        ]

    async def push_facts(self) -> list[PushFact]:
        return [decode(r) for n in range(PARTITIONS) for r in await self.records(Partition(PUSHES.name, n))]

    async def outcomes(self, *kinds: int) -> list[Row]:
        records = [r for n in range(PARTITIONS) for r in await self.records(Partition(DELIVERIES.name, n))]
        return [row for record in records for row in rows(record) if not kinds or row.kind in kinds]

    async def recorded(self, *expected: Row) -> None:
        """Wait until as many outcomes of the expected kinds are in the log, and expect that they are these."""
        kinds = {row.kind for row in expected}
        found: list[Row] = []
        reader = await self.log.open({Partition(DELIVERIES.name, n): 0 for n in range(PARTITIONS)})
        async with asyncio.timeout(BOUND_S):
            while len(found) < len(expected):
                found += [row for record in await reader.read() for row in rows(record) if row.kind in kinds]
        await reader.close()
        assert sorted(found) == sorted(expected)

    async def until_facts(self, kind: str, count: int) -> None:
        """Wait until so many facts of the kind are in `pushes`."""
        reader = await self.log.open({Partition(PUSHES.name, n): 0 for n in range(PARTITIONS)})
        async with asyncio.timeout(BOUND_S):
            while count > 0:
                count -= sum(decode(record).WhichOneof("fact") == kind for record in await reader.read())
        await reader.close()

    async def verify(self) -> replay.Verdict:
        """The live state's snapshot against a state rebuilt from nothing."""
        partitions = open_state(self.settings, self.directory / "none", self.log).partitions
        ends = await self.log.ends(partitions)
        return await replay.verify(
            lambda directory, log: open_state(self.settings, directory, log),
            self.directory / "delivery",
            self.log,
            ends,
            lambda count: None,
        )


def listed(*devices: At, own_ids: bool = False) -> Audience:
    count = len(devices)
    return Audience(
        devices=Devices(
            partitions=struct.pack(f"<{count}H", *(at.partition for at in devices)),
            numbers=struct.pack(f"<{count}I", *(at.number for at in devices)),
            id_offsets=struct.pack(f"<{count}I", *(range(count) if own_ids else [0] * count)),
        )
    )


def with_stag(stag: str) -> Audience:
    return Audience(filter=Filter(stags=[StagGroup(stags=[stag])]))


def connected(connection: int, at: At, appkey: str = APP) -> Connected:
    return Connected(connection=connection, appkey=appkey, partition=at.partition, number=at.number)


def reports(kind: int, rows: Sequence[tuple[int, At]], appkey: str = APP, time_ms: int = START_MS) -> Reports:
    count = len(rows)
    return Reports(
        appkey=appkey,
        partitions=struct.pack(f"<{count}H", *(at.partition for _, at in rows)),
        numbers=struct.pack(f"<{count}I", *(at.number for _, at in rows)),
        msgids=struct.pack(f"<{count}Q", *(msgid for msgid, _ in rows)),
        kinds=bytes([kind]) * count,
        times_ms=struct.pack(f"<{count}q", *[time_ms] * count),
    )


def rows(record: Record) -> list[Row]:
    return [row for columns in decode(record).outcomes.apps for row in _rows(record.partition, columns)]


def _rows(partition: int, columns: AppOutcomes) -> list[Row]:
    count = len(columns.kinds)
    return [
        Row(msgid, At(partition, number), kind, columns.reasons[reason - 1] if reason else "")
        for msgid, number, kind, reason, _ in zip(
            struct.unpack(f"<{count}Q", columns.msgids),
            struct.unpack(f"<{count}I", columns.numbers),
            columns.kinds,
            columns.reason_indexes,
            struct.unpack(f"<{count}q", columns.times_ms),
            strict=True,
        )
    ]


def _messages(send: Any) -> list[Got]:
    connections = struct.unpack(f"<{len(send.connections) // 8}Q", send.connections)
    msgids = struct.unpack(f"<{len(send.msgids) // 8}Q", send.msgids)
    if len(msgids) == 1:
        msgids *= len(connections)
    return [Got(c, m, send.message.content) for c, m in zip(connections, msgids, strict=True)]


def _device_draft(at: At, appkey: str, stag: str | None) -> NewRecord:
    token = f"token-{at.partition}-{at.number}"
    device = Device(
        appkey=appkey,
        token=token,
        platform=PLATFORM_ANDROID,
        partition=at.partition,
        number=at.number,
        registered_ms=START_MS,
        stags=[stag] if stag else [],
    )
    fact = DeviceFact(meta=Meta(event_id=event_id(), time_ms=START_MS, writer="registry"), device=device)
    return NewRecord(DEVICES.name, at.partition, device_key(appkey, token), fact.SerializeToString())


async def idle(turns: int = 30) -> None:
    """Let everything that can run without time or the log run."""
    for _ in range(turns):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def started(services: Sequence[Any], wait: bool = True) -> AsyncIterator[None]:
    """Run services in order; at the end cancel them in reverse. A service may die of KilledError."""
    tasks: list[asyncio.Task[None]] = []
    try:
        for service in services:
            ready = asyncio.Event()
            tasks.append(asyncio.create_task(service.run(ready)))
            waits: list[asyncio.Task[Any]] = [asyncio.create_task(cast(Awaitable[Any], ready.wait())), tasks[-1]]  # type: ignore[arg-type]
            if wait or service.name != "delivery":
                await asyncio.wait(waits, timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
                if not ready.is_set() and not tasks[-1].done():
                    raise TimeoutError(f"{service.name} was not ready")
            waits[0].cancel()
        yield
        for task in tasks:
            if task.done() and not isinstance(task.exception(), KilledError):
                await task
    finally:
        for task in reversed(tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KilledError):
                await task


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    clock = ManualClock(START_MS)
    settings = DeliverySettings(
        data_dir=str(tmp_path), partitions=PARTITIONS, apns_url="https://127.0.0.1:1", snapshot_s=1_000_000
    )
    yield House(tmp_path, BreakingLog(log), clock, MessageIds(clock, 0), settings)
    await log.close()
