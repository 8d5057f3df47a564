"""Sends tasks when they fall due, exactly once even across crashes.

TaskFellDue is written first, through the follower and so in one order with the cancels; then the pushes, with the
message ids that were fixed at creation; then TaskSent. A crash in between sends the pushes again, and delivery drops
repeated message ids.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from protos.push.v1.push_pb2 import SendPush
from services.domain.audience_resolver import AudienceResolver
from services.domain.command_writer import Command, CommandWriter, push_command
from services.domain.topics import TASKS
from services.runtime.errors import CarillonError, ConflictError, InputError, NotFoundError
from services.runtime.process.clock import Clock
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.logs import logger
from services.runtime.process.metrics import TASKS_FIRED
from services.runtime.projection.decider import Fact
from services.runtime.projection.follower import Follower
from services.scheduling import decide
from services.scheduling.state import StoredTask
from services.scheduling.store import BEFORE_ALL, TaskTable, firing_order

RETRY_MS = 1000
"""Delay between a failed attempt to send a task and the next one, ms."""

_PAGE = 500
_CONCURRENT_TASKS = 32


class Timer:
    """A service that sends due tasks. It starts after the follower, so that pending cancels are decided first."""

    name = "scheduling timer"

    def __init__(
        self, follower: Follower, tasks: TaskTable, audiences: AudienceResolver, writer: CommandWriter, clock: Clock
    ) -> None:
        self._follower = follower
        self._tasks = tasks
        self._audiences = audiences
        self._writer = writer
        self._clock = clock
        self._slots = asyncio.Semaphore(_CONCURRENT_TASKS)

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            change = self._follower.applied.change
            failed = await self._fire()
            await self._until_next(change, failed)

    async def _fire(self) -> int:
        """Send all due tasks. Returns how many could not be sent and must be tried again."""
        while await self._write_due() == _PAGE:
            pass
        failed = 0
        after = BEFORE_ALL
        while page := await self._follower.query(self._tasks.fell_due, after, _PAGE):
            done = await asyncio.gather(*(self._send(task) for task in page))
            sent = [task for task, was_sent in zip(page, done, strict=True) if was_sent]
            await self._write_sent(sent)
            failed += len(page) - len(sent)
            after = firing_order(page[-1])
        return failed

    async def _until_next(self, change: asyncio.Event, failed: int) -> None:
        """Wait until a task falls due, a failed task is to be tried again, or the state changes."""
        due_ms = await self._follower.query(self._tasks.next_due_ms)
        wake_times_ms = [due_ms] if due_ms is not None else []
        if failed:
            wake_times_ms.append(self._clock.now_ms() + RETRY_MS)
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(change.wait())]
        if wake_times_ms:
            waits.append(asyncio.create_task(self._clock.sleep_until(min(wake_times_ms))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _write_due(self) -> int:
        """Write TaskFellDue for at most a page of due tasks; return their number. Later cancels have no effect."""
        count = 0

        def choose() -> Sequence[Fact]:
            nonlocal count
            now_ms = self._clock.now_ms()
            due = self._tasks.due(now_ms, _PAGE)
            count = len(due)
            if due:
                reached(Point.TASK_DUE)
            return [Fact(TASKS, partition, key.encode(), decide.fell_due(key, now_ms)) for key, partition in due]

        await self._follower.write(choose)
        if count:
            reached(Point.TASK_FELL_DUE)
        return count

    async def _write_sent(self, tasks: Sequence[StoredTask]) -> None:
        now_ms = self._clock.now_ms()
        await self._follower.write(
            lambda: [
                Fact(TASKS, task.partition, task.task_key.encode(), decide.sent(task.task_key, now_ms))
                for task in tasks
            ]
        )
        TASKS_FIRED.inc(len(tasks))

    async def _send(self, task: StoredTask) -> bool:
        """Append the task's pushes. Returns False if that must be tried again."""
        async with self._slots:
            try:
                commands = [await self._push_command(task, push) for push in task.scheduled.scheduled.pushes]
                reached(Point.TASK_SENDING)
                await self._writer.append(commands)
                reached(Point.TASK_SENT)
            except (InputError, NotFoundError, ConflictError) as error:
                logger.error("a timed task cannot be sent", task=task.task_key, error=str(error))
            except CarillonError as error:
                logger.warning("a timed task is not sent yet; trying again", task=task.task_key, error=str(error))
                return False
            return True

    async def _push_command(self, task: StoredTask, push: SendPush) -> Command:
        resolved = SendPush()
        resolved.CopyFrom(push)
        resolved.audience.CopyFrom((await self._audiences.resolve(push.appkey, push.audience)).audience)
        return push_command(decide.push_command(task, resolved, self._clock.now_ms()))
