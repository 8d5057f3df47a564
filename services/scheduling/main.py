"""The scheduling role: keeps timed tasks and sends them when they fall due."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from protos.scheduling.v1.scheduling_pb2_grpc import add_SchedulingServiceServicer_to_server
from services.domain.role import Role, RoleContext
from services.domain.targets import Targets
from services.domain.topics import TASK_COMMANDS, TASKS
from services.runtime.log.port import Log, Partition, Record
from services.runtime.log.topics import owned
from services.runtime.process.settings import Settings
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.follower import Fact, Follower
from services.runtime.projection.positions import PositionsServicer
from services.runtime.projection.store import SqliteStore
from services.scheduling.decide import decide
from services.scheduling.server import SchedulingServicer
from services.scheduling.state import apply
from services.scheduling.store import DDL, TaskTable
from services.scheduling.timer import Timer

ROLE = "scheduling"


class SchedulingSettings(Settings, frozen=True, kw_only=True):
    """What every role is told; scheduling needs nothing else."""


SETTINGS = SchedulingSettings


class TaskRules:
    """Decides commands about tasks; a task's facts stand in the partition of its commands."""

    def __init__(self, tasks: TaskTable) -> None:
        self._tasks = tasks

    def apply(self, record: Record, message: Any) -> None:
        apply(self._tasks, record.partition, message)

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        task = self._tasks.find(message.task_key)
        fact = decide(message, task, self._tasks.find_claim(message.create.claim.key))
        return [Fact(TASKS, record.partition, record.key, fact)] if fact else []


class SchedulingState:
    """The tasks on disk and the follower that keeps them; a service that closes what it opened."""

    name = ROLE

    def __init__(self, settings: SchedulingSettings, directory: Path, log: Log) -> None:
        numbers = owned(settings.partitions, settings.shard, settings.shards)
        self._store = SqliteStore(directory / "tasks.sqlite", DDL)
        self.tasks = TaskTable(self._store.rows)
        self.committed = TaskTable(self._store.reading())
        self.follower = Follower(
            ROLE,
            log,
            TaskRules(self.tasks),
            self._store,
            DeadLetters(settings.data / "parked" / f"{ROLE}.jsonl", ROLE),
            folds=(),
            decides=[Partition(TASK_COMMANDS.name, number) for number in numbers],
            own=[Partition(TASKS.name, number) for number in numbers],
        )
        self.followers = (self.follower,)

    async def run(self, ready: asyncio.Event) -> None:
        try:
            await self.follower.run(ready)
        finally:
            self.close()

    def digest(self) -> str:
        return self._store.digest()

    def close(self) -> None:
        self.committed.close()
        self._store.close()


def open_state(settings: SchedulingSettings, directory: Path, log: Log) -> SchedulingState:
    """The state in a directory, for replays."""
    return SchedulingState(settings, directory, log)


def build(settings: SchedulingSettings, context: RoleContext) -> Role:
    state = SchedulingState(settings, settings.state_dir(ROLE), context.log)
    targets = Targets(context.peers, settings.partitions)
    timer = Timer(state.follower, state.tasks, targets, context.log, context.clock)
    tasks = SchedulingServicer(state.follower, state.committed)
    positions = PositionsServicer(state.follower.progress)
    return Role(
        ROLE,
        services=(state, timer),
        servicers=(
            lambda server: add_SchedulingServiceServicer_to_server(tasks, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ),
    )
