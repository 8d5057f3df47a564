"""The follower: commands are decided once whatever fails, facts and offsets are committed together."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from protos.registry.v1.devices_pb2 import Device, DeviceCommand, DeviceFact
from protos.runtime.v1.log_pb2 import AwaitRequest, Meta, Position
from services.domain.topics import DEVICE_COMMANDS, DEVICES, SESSIONS, TOPICS
from services.runtime.errors import BusyError, ConflictError, UnavailableError
from services.runtime.log.port import Log, NewRecord, Partition, Record
from services.runtime.log.recent_records import RecentRecords
from services.runtime.log.sqlite import SqliteLog
from services.runtime.log.sqlite_file import Page
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.decider import Fact
from services.runtime.projection.follower import Follower
from services.runtime.projection.positions import PositionsServicer
from services.runtime.projection.sqlite_store import SqliteStore

BOUND_S = 20
COMMANDS = [Partition(DEVICE_COMMANDS.name, number) for number in range(3)]
FACTS = [Partition(DEVICES.name, number) for number in range(3)]
DDL = "CREATE TABLE tally (token TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;"


class Tally:
    """Counts the commands of each token; a command on a token is one fact with the new count."""

    def __init__(self, store: SqliteStore) -> None:
        self._rows = store.rows
        self.applied: list[tuple[str, int]] = []

    def apply(self, record: Record, message: DeviceFact) -> None:
        row = (message.device.token, message.device.number)
        self.applied.append((record.topic, record.offset))
        self._rows.execute("INSERT OR REPLACE INTO tally VALUES (?, ?)", row)

    def decide(self, record: Record, message: DeviceCommand) -> Sequence[Fact]:
        row = self._rows.execute("SELECT count FROM tally WHERE token = ?", (message.token,)).fetchone()
        device = Device(token=message.token, number=(row[0] if row else 0) + 1)
        return [Fact(DEVICES, record.partition, message.token.encode(), DeviceFact(device=device))]


class Echo:
    """Applies facts, and decides a command for each."""

    def __init__(self) -> None:
        self.applied: list[str] = []

    def apply(self, record: Record, message: DeviceFact) -> None:
        self.applied.append(message.device.token)

    def decide(self, record: Record, message: DeviceFact) -> Sequence[Fact]:
        return [Fact(DEVICE_COMMANDS, record.partition, b"k", DeviceCommand(token=f"echo {message.device.token}"))]


class BrittleLog(SqliteLog):
    """A log that reads three records at a time; its appends of facts fail as the test says."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, TOPICS)
        self.recent = RecentRecords(max_bytes=0)
        self.before_facts: list[Exception] = []
        self.after_facts: list[Exception] = []
        self.hold: asyncio.Event | None = None
        self.holding = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        facts = any(new_record.topic == DEVICES.name for new_record in new_records)
        if facts and self.hold:
            self.holding.set()
            await self.hold.wait()
        if facts and self.before_facts:
            raise self.before_facts.pop()
        offsets = await super().append(new_records)
        if facts and self.after_facts:
            raise self.after_facts.pop()
        return offsets

    async def select(self, starts: Mapping[Partition, int], limit: int) -> Page:
        return await super().select(starts, min(limit, 3))


class CutError(Exception):
    """The process was killed."""


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[BrittleLog]:
    log = BrittleLog(tmp_path / "log.sqlite")
    yield log
    await log.close()


class Role:
    """A follower with the Tally decider, and its store in the directory."""

    def __init__(self, log: Log, directory: Path) -> None:
        self.store = SqliteStore(directory / "tally.sqlite", DDL)
        self.rules = Tally(self.store)
        dead_letters = DeadLetters(directory / "dead-letters.jsonl", "tally")
        self.follower = Follower(
            "tally", log, self.rules, self.store, dead_letters, applies=[], decides=COMMANDS, own=FACTS
        )
        self.ready = asyncio.Event()
        self.task = asyncio.create_task(self.follower.run(self.ready))

    async def is_ready(self) -> None:
        await asyncio.wait_for(self.ready.wait(), BOUND_S)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task], timeout=BOUND_S)
        self.store.close()

    async def died_of(self, error: type[Exception]) -> None:
        with pytest.raises(error):
            await asyncio.wait_for(self.task, BOUND_S)
        self.store.close()


async def write(log: Log, *tokens: str) -> list[Position]:
    """One command a token; the n-th token of a call goes to partition n mod 3."""
    new_records = [
        NewRecord(
            DEVICE_COMMANDS.name,
            index % 3,
            token.encode(),
            DeviceCommand(meta=Meta(time_ms=index + 1), token=token).SerializeToString(),
        )
        for index, token in enumerate(tokens)
    ]
    offsets = await log.append(new_records)
    return [
        Position(topic=d.topic, partition=d.partition, offset=offset)
        for d, offset in zip(new_records, offsets, strict=True)
    ]


async def settled(role: Role, positions: Sequence[Position]) -> list[Position]:
    servicer = PositionsServicer(role.follower.applied)
    request = AwaitRequest(positions=positions)
    context: Any = None
    return list((await asyncio.wait_for(servicer.Await(request, context), BOUND_S)).produced)


def tally(store: SqliteStore) -> dict[str, int]:
    return dict(store.rows.execute("SELECT * FROM tally").fetchall())


TOKENS = ["a", "b", "c"] * 5
COUNTS = {"a": 5, "b": 5, "c": 5}


async def appended(log: Log) -> int:
    return sum((await log.ends(FACTS)).values())


async def test_facts_and_offsets_are_committed_together(log: BrittleLog, tmp_path: Path) -> None:
    role = Role(log, tmp_path)
    await role.is_ready()
    produced = await settled(role, await write(log, *TOKENS))
    assert {(position.partition, position.offset) for position in produced} == {(0, 4), (1, 4), (2, 4)}
    await role.stop()
    again = SqliteStore(tmp_path / "tally.sqlite", DDL)
    assert tally(again) == COUNTS
    assert again.offsets() == dict.fromkeys([*COMMANDS, *FACTS], 5)
    again.close()


@pytest.mark.parametrize("after", [False, True], ids=["before the append", "between append and commit"])
async def test_the_next_start_recovers_from_a_crash(log: BrittleLog, tmp_path: Path, after: bool) -> None:
    await write(log, *TOKENS)
    (log.after_facts if after else log.before_facts).append(CutError())
    await Role(log, tmp_path).died_of(CutError)
    role = Role(log, tmp_path)
    await role.is_ready()
    assert tally(role.store) == COUNTS
    assert await appended(log) == len(TOKENS)
    await role.stop()


async def test_recovery_from_many_crashes_in_a_row(log: BrittleLog, tmp_path: Path) -> None:
    await write(log, *TOKENS)
    for index in range(5):
        (log.after_facts if index % 2 else log.before_facts).append(CutError())
        await Role(log, tmp_path).died_of(CutError)
    role = Role(log, tmp_path)
    await role.is_ready()
    assert tally(role.store) == COUNTS
    assert await appended(log) == len(TOKENS)
    await role.stop()


async def test_an_empty_state_is_rebuilt_without_deciding_again(log: BrittleLog, tmp_path: Path) -> None:
    await write(log, *TOKENS)
    role = Role(log, tmp_path / "one")
    await role.is_ready()
    await role.stop()
    fresh = Role(log, tmp_path / "two")
    await fresh.is_ready()
    assert tally(fresh.store) == COUNTS
    assert await appended(log) == len(TOKENS)
    assert fresh.store.offsets() == dict.fromkeys([*COMMANDS, *FACTS], 5)
    await fresh.stop()


async def test_appends_to_a_busy_or_unavailable_log_are_retried(log: BrittleLog, tmp_path: Path) -> None:
    log.before_facts += [BusyError("full"), UnavailableError("away")]
    role = Role(log, tmp_path)
    await role.is_ready()
    await settled(role, await write(log, "a"))
    assert tally(role.store) == {"a": 1}
    assert await appended(log) == 1
    await role.stop()


async def test_a_stop_while_facts_are_appended_leaves_nothing_half_done(log: BrittleLog, tmp_path: Path) -> None:
    role = Role(log, tmp_path)
    await role.is_ready()
    log.hold = asyncio.Event()
    await write(log, "a", "b")
    await asyncio.wait_for(log.holding.wait(), BOUND_S)
    await role.stop()
    log.hold = None
    again = Role(log, tmp_path)
    await again.is_ready()
    assert tally(again.store) == {"a": 1, "b": 1}
    assert await appended(log) == 2
    await again.stop()


async def test_callers_can_wait_for_own_facts(log: BrittleLog, tmp_path: Path) -> None:
    """Also for facts that a crash left in the log, and for facts written after it."""
    await write(log, "a")
    log.after_facts.append(CutError())
    await Role(log, tmp_path).died_of(CutError)
    role = Role(log, tmp_path)
    await role.is_ready()
    (produced,) = await settled(role, await write(log, "a"))
    assert produced == Position(topic=DEVICES.name, partition=0, offset=1)
    await settled(role, [produced])
    later = Position(topic=DEVICES.name, partition=0, offset=2)
    waiting = asyncio.create_task(settled(role, [later]))
    await settled(role, await write(log, "b"))
    await waiting
    assert tally(role.store) == {"a": 2, "b": 1}
    await role.stop()


async def test_a_replay_applies_facts_up_to_the_ends_and_no_further(log: BrittleLog, tmp_path: Path) -> None:
    role = Role(log, tmp_path / "one")
    await role.is_ready()
    await settled(role, await write(log, *(f"t{index}" for index in range(30))))
    await role.stop()
    store = SqliteStore(tmp_path / "two" / "tally.sqlite", DDL)
    rules = Tally(store)
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "tally")
    follower = Follower("tally", log, rules, store, dead_letters, applies=[], decides=COMMANDS, own=FACTS)
    counts: list[int] = []
    ends = {FACTS[0]: 7, FACTS[1]: 0, FACTS[2]: 10}
    await follower.apply_until(ends, counts.append)
    assert sum(counts) == 17
    assert set(tally(store)) == {f"t{index}" for index in range(0, 21, 3)} | {f"t{index}" for index in range(2, 30, 3)}
    assert store.offsets() == {FACTS[0]: 7, FACTS[2]: 10, COMMANDS[0]: 7, COMMANDS[2]: 10}
    await follower.apply_until(dict.fromkeys(FACTS, 10), counts.append)
    assert sum(counts) == 30
    store.close()


@pytest.mark.parametrize("seen", [COMMANDS[0], FACTS[1]], ids=["commands", "own facts"])
async def test_a_state_that_is_ahead_of_the_log_is_refused(log: BrittleLog, tmp_path: Path, seen: Partition) -> None:
    """Both the start and a replay refuse it: it belongs to another log."""
    await write(log, *TOKENS)
    role = Role(log, tmp_path)
    await role.is_ready()
    await role.stop()
    store = SqliteStore(tmp_path / "tally.sqlite", DDL)
    store.begin()
    store.commit({seen: 6})
    store.close()
    await Role(log, tmp_path).died_of(ConflictError)
    store = SqliteStore(tmp_path / "tally.sqlite", DDL)
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "tally")
    follower = Follower("tally", log, Tally(store), store, dead_letters, applies=[], decides=COMMANDS, own=FACTS)
    with pytest.raises(ConflictError, match=f"seen 6 records of {seen.topic}/{seen.number}, but .* ends at 5"):
        await follower.apply_until(await log.ends(FACTS), lambda count: None)
    store.close()


async def test_own_facts_are_replayed_before_those_of_others(log: BrittleLog, tmp_path: Path) -> None:
    new_records = [NewRecord(SESSIONS.name, 0, b"", b"")] * 4 + [
        NewRecord(DEVICES.name, 0, bytes([n]), b"") for n in range(4)
    ]
    await log.append(new_records)
    store = SqliteStore(tmp_path / "tally.sqlite", DDL)

    class Order(Tally):
        def apply(self, record: Record, message: Any) -> None:
            self.applied.append((record.topic, record.offset))

    rules = Order(store)
    sessions = Partition(SESSIONS.name, 0)
    follower = Follower(
        "tally", log, rules, store, DeadLetters(tmp_path / "p", "tally"), applies=[sessions], own=FACTS[:1]
    )
    await follower.apply_until({sessions: 4, FACTS[0]: 4}, lambda count: None)
    assert rules.applied == [(topic, offset) for topic in (DEVICES.name, SESSIONS.name) for offset in range(4)]
    store.close()


async def test_a_fresh_state_does_not_decide_on_the_past(log: BrittleLog, tmp_path: Path) -> None:
    async def facts(*tokens: str) -> None:
        await log.append(
            [
                NewRecord(DEVICES.name, 0, t.encode(), DeviceFact(device=Device(token=t)).SerializeToString())
                for t in tokens
            ]
        )

    async def run_once() -> Echo:
        store = SqliteStore(tmp_path / "echo.sqlite", DDL)
        rules = Echo()
        dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "echo")
        follower = Follower("echo", log, rules, store, dead_letters, applies=FACTS, decides=FACTS)
        ready = asyncio.Event()
        task = asyncio.create_task(follower.run(ready))
        await asyncio.wait_for(ready.wait(), BOUND_S)
        task.cancel()
        await asyncio.wait([task])
        store.close()
        return rules

    await facts("a", "b", "c", "d")
    assert (await run_once()).applied == ["a", "b", "c", "d"]
    assert (await log.ends(COMMANDS))[COMMANDS[0]] == 0
    await facts("e")
    assert (await run_once()).applied == ["e"]
    last = await log.last(COMMANDS[0])
    assert last is not None
    assert DeviceCommand.FromString(last.value).token == "echo e"
    assert last.offset == 0
