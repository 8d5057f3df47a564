"""Scheduling's projection: timed tasks in SQLite, folded from `tasks`; the follower decides `task-commands`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protos.registry.v1.erasures_pb2 import ErasureFact
from services.domain.sealed_log import FORGOTTEN_LATE_MS, sealer_of
from services.domain.topics import ERASURES_PARTITION, TASK_COMMANDS, TASKS
from services.log.identity import check_log_identity
from services.log.port import Log, Partition, Record
from services.log.topics import owned
from services.process.clock import Clock
from services.replica.dead_letters import DeadLetters
from services.replica.epochs import Epochs
from services.replica.fencing import Fencing
from services.replica.follower import Follower
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact
from services.replica.tenure import OwnerElection
from services.scheduling.decide import decide
from services.scheduling.settings import ROLE_NAME, SchedulingSettings
from services.scheduling.state import apply
from services.scheduling.store import DDL, TaskLists, TaskTable


class TaskRules:
    """The follower's rules for tasks. The facts of a task lie in the same partition number as its commands."""

    def __init__(self, tasks: TaskTable, log: Log) -> None:
        self._tasks = tasks
        self._log = log

    def apply(self, record: Record, message: Any) -> None:
        if isinstance(message, ErasureFact):
            if message.HasField("erased"):
                self._forget(message)
        else:
            apply(self._tasks, record.partition, message)

    def _forget(self, fact: ErasureFact) -> None:
        """Take out of the tasks what is about an erased person. A task that is made later names whoever has the token
        then.
        """
        if (sealer := sealer_of(self._log)) is not None:
            self._tasks.forget(
                fact.erased.appkey,
                fact.meta.time_ms + FORGOTTEN_LATE_MS,
                lambda partition, task: sealer.without(TASKS.name, partition, task, fact.erased),
            )

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        task = self._tasks.find(message.task_key)
        fact = decide(message, task, self._tasks.find_claim(message.create.claim.key))
        return [Fact(TASKS, record.partition, record.key, fact)] if fact else []


class SchedulingProjection:
    """The task store and its follower. A service that runs the follower and closes the store when it stops.

    `tasks` reads and writes in the follower's transaction, `committed` reads over a connection of its own.
    """

    name = ROLE_NAME

    def __init__(
        self,
        settings: SchedulingSettings,
        directory: Path,
        log: Log,
        clock: Clock,
        election: OwnerElection | None = None,
    ) -> None:
        numbers = owned(settings.partitions, settings.shard, settings.shards)
        check_log_identity(directory, log, ROLE_NAME)
        self.store = SqliteStore(directory / "tasks.sqlite", DDL)
        self.tasks = TaskTable(self.store.rows)
        reading = self.store.reading()
        self.committed, self.lists = TaskTable(reading), TaskLists(reading)
        self.follower = Follower(
            ROLE_NAME,
            log,
            TaskRules(self.tasks, log),
            self.store,
            DeadLetters(settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl", ROLE_NAME),
            applies=[ERASURES_PARTITION],
            decides=[Partition(TASK_COMMANDS.name, number) for number in numbers],
            own=[Partition(TASKS.name, number) for number in numbers],
            fencing=Fencing(ROLE_NAME, log.topics, Epochs(self.store.epochs(), self.store.set_epoch), clock),
            election=election,
        )
        self.followers = (self.follower,)

    async def run(self, ready: asyncio.Event) -> None:
        try:
            await self.follower.run(ready)
        finally:
            self.close()

    def digest(self) -> str:
        return self.store.digest()

    def save(self) -> None:
        """Do nothing: each batch of facts has been committed."""

    def close(self) -> None:
        self.committed.close()
        self.store.close()
