"""A role that counts the commands of each task, under epochs: a command is one fact with the new count."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from protos.scheduling.v1.scheduling_pb2 import TaskCommand, TaskFact, TaskFailed
from services.domain.topics import TASK_COMMANDS, TASKS, TOPICS
from services.log.port import DelegatingLog, Log, NewRecord, Partition, Record
from services.process.clock import ManualClock
from services.replica.dead_letters import DeadLetters
from services.replica.epochs import Epochs
from services.replica.fencing import Fencing
from services.replica.follower import Follower
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact

BOUND_S = 60
NAMES = ("a", "b", "c")
"""Tasks; the n-th is in partition n."""

COMMANDS = [Partition(TASK_COMMANDS.name, number) for number in range(len(NAMES))]
FACTS = [Partition(TASKS.name, number) for number in range(len(NAMES))]
DDL = "CREATE TABLE counts (task TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;"


class Counter:
    def __init__(self, store: SqliteStore) -> None:
        self._rows = store.rows

    def apply(self, record: Record, fact: TaskFact) -> None:
        if fact.HasField("failed"):
            self._rows.execute("INSERT OR REPLACE INTO counts VALUES (?, ?)", (fact.task_key, int(fact.failed.reason)))

    def decide(self, record: Record, command: TaskCommand) -> Sequence[Fact]:
        row = self._rows.execute("SELECT count FROM counts WHERE task = ?", (command.task_key,)).fetchone()
        failed = TaskFailed(reason=str((row[0] if row else 0) + 1))
        return [Fact(TASKS, record.partition, record.key, TaskFact(task_key=command.task_key, failed=failed))]


class Owner:
    """A process of the role, with a state of its own in the directory."""

    def __init__(self, log: Log, directory: Path) -> None:
        self._store = SqliteStore(directory / "counts.sqlite", DDL)
        self.follower = Follower(
            "counter",
            log,
            Counter(self._store),
            self._store,
            DeadLetters(directory / "dead-letters.jsonl", "counter"),
            applies=[],
            decides=COMMANDS,
            own=FACTS,
            fencing=Fencing("counter", TOPICS, Epochs(self._store.epochs(), self._store.set_epoch), ManualClock(0)),
        )
        self._ready = asyncio.Event()
        self._task = asyncio.create_task(self.follower.run(self._ready))

    async def is_ready(self) -> None:
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait([waiting, self._task], timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert self._ready.is_set(), self._task

    async def decide(self, log: Log, *tasks: str) -> None:
        """Write a command on each of the tasks, and wait until this process has decided all."""
        ends = await command(log, *tasks)
        async with asyncio.timeout(BOUND_S):
            await self.follower.applied.wait(ends)

    def counts(self) -> dict[str, int]:
        return dict(self._store.rows.execute("SELECT * FROM counts").fetchall())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task], timeout=BOUND_S)
        self._store.close()

    async def ends_with(self, error: type[Exception]) -> None:
        """Wait for the end of the process, which this error causes."""
        with pytest.raises(error):
            await asyncio.wait_for(self._task, BOUND_S)
        self._store.close()


async def command(log: Log, *tasks: str) -> list[tuple[Partition, int]]:
    """Write a command on each of the tasks; return the partitions and offsets."""
    new_records = [
        NewRecord(*COMMANDS[NAMES.index(task)], task.encode(), TaskCommand(task_key=task).SerializeToString())
        for task in tasks
    ]
    offsets = await log.append(new_records)
    return [(Partition(r.topic, r.partition), offset) for r, offset in zip(new_records, offsets, strict=True)]


class HeldLog(DelegatingLog):
    """The log of a process that can be held up just before it appends."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.waiting = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if not self.go_on.is_set():
            self.waiting.set()
            await self.go_on.wait()
        return await super().append(new_records)
