"""Sends tasks when they fall due, exactly once even across crashes.

TaskFellDue is written first, through the follower and so in one order with the cancels; then the pushes, with the
message ids that were fixed at creation; then TaskSent. A crash in between sends the pushes again, and delivery drops
repeated message ids.

A task whose due time comes while one of its apps is paused gets TaskPaused instead, so it takes no place among the due
tasks. The paused tasks are looked through after each change of a pause, and when the time to live of one ends.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from protos.push.v1.push_pb2 import SendPush
from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.domain.apps import AppDirectory
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
from services.scheduling.store import BEFORE_ALL, FiringOrder, TaskTable, firing_order

RETRY_MS = 1000
"""Delay between a failed attempt to send a task and the next one, ms."""

_PAGE = 500
_CONCURRENT_TASKS = 32


class Timer:
    """A service that sends due tasks. It starts after the follower, so that pending cancels are decided first."""

    name = "scheduling timer"

    def __init__(
        self,
        follower: Follower,
        tasks: TaskTable,
        audiences: AudienceResolver,
        writer: CommandWriter,
        apps: AppDirectory,
        clock: Clock,
    ) -> None:
        self._follower = follower
        self._tasks = tasks
        self._audiences = audiences
        self._writer = writer
        self._apps = apps
        self._clock = clock
        self._pauses_changed = asyncio.Event()
        self._pauses_changed.set()
        self._next_expiry_ms: int | None = None
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
        await self._write_after_pauses()
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
        """Wait until a task falls due or a paused one expires, a failed task is to be tried again, or a change."""
        due_ms = await self._follower.query(self._tasks.next_due_ms)
        wake_times_ms = [time_ms for time_ms in (due_ms, self._next_expiry_ms) if time_ms is not None]
        if failed:
            wake_times_ms.append(self._clock.now_ms() + RETRY_MS)
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in (change, self._pauses_changed)]
        if wake_times_ms:
            waits.append(asyncio.create_task(self._clock.sleep_until(min(wake_times_ms))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _write_due(self) -> int:
        """Write TaskFellDue or TaskPaused for at most a page of due tasks; return their number.

        After TaskFellDue, cancels have no effect.
        """
        count = 0

        def choose() -> Sequence[Fact]:
            nonlocal count
            now_ms = self._clock.now_ms()
            due = self._tasks.due(now_ms, _PAGE)
            count = len(due)
            if due:
                reached(Point.TASK_DUE)
            return [Fact(TASKS, partition, key.encode(), self._due_fact(key, now_ms)) for key, partition in due]

        await self._follower.write(choose)
        if count:
            reached(Point.TASK_FELL_DUE)
        return count

    def _due_fact(self, key: str, now_ms: int) -> TaskFact:
        task = self._tasks.find(key) if self._apps.has_pauses else None
        is_at_once = task is None or task.scheduled.scheduled.at_once
        if task is None or is_at_once or not any(map(self._apps.is_paused, task.appkeys)):
            return decide.fell_due(key, now_ms)
        self._expect_expiry(task)
        return decide.paused(key, now_ms)

    async def _write_after_pauses(self) -> None:
        """Write how the paused tasks go on, if a pause has changed or the time to live of one has ended."""
        is_expiry_due = self._next_expiry_ms is not None and self._next_expiry_ms <= self._clock.now_ms()
        if not (self._pauses_changed.is_set() or is_expiry_due):
            return
        self._pauses_changed = self._apps.pauses_changed
        self._next_expiry_ms = None
        after: FiringOrder | None = BEFORE_ALL

        def choose() -> Sequence[Fact]:
            nonlocal after
            now_ms = self._clock.now_ms()
            page = self._tasks.paused(after or BEFORE_ALL, _PAGE)
            after = firing_order(page[-1]) if len(page) == _PAGE else None
            facts = []
            for task in page:
                if fact := decide.after_pause(task, self._apps.is_paused, now_ms):
                    facts.append(Fact(TASKS, task.partition, task.task_key.encode(), fact))
                else:
                    self._expect_expiry(task)
            return facts

        while after is not None:
            await self._follower.write(choose)

    def _expect_expiry(self, task: StoredTask) -> None:
        """Look through the paused tasks when this one expires, at the latest."""
        self._next_expiry_ms = min(task.expires_ms, self._next_expiry_ms or task.expires_ms)

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
