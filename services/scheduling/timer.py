"""Lets tasks fall due, exactly once even across crashes.

TaskFellDue is written first, through the follower and so in one order with the cancels; then the sender appends the
pushes, with the message ids that were fixed at creation, and then TaskSent. A crash in between sends the pushes again,
and delivery drops repeated message ids.
"""

import asyncio
from collections.abc import Sequence

from services.domain.apps import AppDirectory
from services.runtime.process.clock import Clock, wait_for_first
from services.runtime.process.crashpoint import Point, reached
from services.runtime.projection.decider import Fact
from services.runtime.projection.follower import Follower
from services.scheduling.due_tasks import DueTasks
from services.scheduling.task_sender import TaskSender


class Timer:
    """A service that writes which tasks fall due. It starts after the follower, so that pending cancels come first."""

    name = "scheduling timer"

    def __init__(
        self, follower: Follower, due_tasks: DueTasks, sender: TaskSender, apps: AppDirectory, clock: Clock
    ) -> None:
        self._follower = follower
        self._due_tasks = due_tasks
        self._sender = sender
        self._apps = apps
        self._clock = clock
        self._pauses_changed = asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        tenure_end: asyncio.Event | None = None
        while True:
            if tenure_end is not (tenure_end := await self._follower.tenure.wait()):
                self._look_through_paused_tasks()
            change = self._follower.applied.change
            while await self._write_next():
                pass
            next_ms = await self._follower.query(self._due_tasks.next_ms)
            await wait_for_first(self._clock, next_ms, change, self._pauses_changed)

    def _look_through_paused_tasks(self) -> None:
        """Treat the pauses as changed: until now another process has done so, or none."""
        self._pauses_changed = asyncio.Event()
        self._pauses_changed.set()

    async def _write_next(self) -> bool:
        """Write the next facts; return whether there may be more. After TaskFellDue, cancels have no effect."""
        if self._pauses_changed.is_set():
            self._pauses_changed = self._apps.pauses_changed
            await self._follower.query(self._due_tasks.note_pauses_changed)
        facts: Sequence[Fact] = ()
        has_more = False

        def choose() -> Sequence[Fact]:
            nonlocal facts, has_more
            facts, has_more = self._due_tasks.next_facts(self._clock.now_ms())
            if facts:
                reached(Point.TASK_DUE)
            return facts

        await self._follower.write(choose)
        if facts:
            reached(Point.TASK_FELL_DUE)
            await self._sender.send([fact.message.task_key for fact in facts if fact.message.HasField("fell_due")])
        return has_more
