"""A follower that counts commands, on a log in whose appends a test can cause errors."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from protos.registry.v1.devices_pb2 import Device, DeviceCommand, DeviceFact
from protos.runtime.v1.log_pb2 import AwaitRequest, Meta, Position
from services.domain.topics import DEVICE_COMMANDS, DEVICES, TOPICS
from services.log.port import Log, NewRecord, Partition, Record
from services.log.sqlite.file import RecordPage
from services.log.sqlite.log import SqliteLog
from services.log.sqlite.reader import RecentRecords
from services.replica.dead_letters import DeadLetters
from services.replica.follower import Follower
from services.replica.positions import PositionsServicer
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact

BOUND_S = 60
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


class FaultyAppendsLog(SqliteLog):
    """A log that reads three records at a time, and raises a test's errors before or after it appends facts."""

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

    async def select(self, starts: Mapping[Partition, int], limit: int) -> RecordPage:
        return await super().select(starts, min(limit, 3))


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
