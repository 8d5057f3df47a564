"""Lets tasks fall due, apps in turn and a page at a time, exactly once even across crashes.

TaskFellDue is written first, through the follower and so in one order with the cancels; then the sender appends the
pushes, with the message ids that were fixed at creation, and then TaskSent. A crash in between sends the pushes again,
and delivery drops repeated message ids.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.domain.apps import AppDirectory
from services.domain.topics import TASKS
from services.process.clock import Clock, wait_for_first
from services.process.crashpoint import Point, reached
from services.replica.follower import Follower
from services.replica.store import Fact
from services.scheduling import decide
from services.scheduling.state import Status
from services.scheduling.store import BEFORE_ALL, DueTask, FiringOrder, TaskTable
from services.scheduling.task_sender import TaskSender

# Chooses the tasks that fall due, are paused, go on after a pause or expire next: apps in turn, a page at a time.

PAGE = 500
"""Tasks that one append to the log lets fall due. Where more are due, each app with due tasks has an equal share."""


class DueTasks:
    """Derives the facts that time and changes of pauses cause for tasks. Its methods run in the follower's thread.

    A task whose due time comes while one of its apps is paused is paused. Each change of a pause looks once through the
    paused tasks of the apps that are not paused.
    """

    def __init__(self, tasks: TaskTable, apps: AppDirectory) -> None:
        self._tasks = tasks
        self._apps = apps
        self._resumed: dict[str, FiringOrder] = {}
        self._latest_app = ""

    def note_pauses_changed(self) -> None:
        """Begin to look through the paused tasks of all apps that are not paused."""
        paused = self._tasks.apps_with(Status.PAUSED)
        self._resumed = {appkey: BEFORE_ALL for appkey in paused if not self._apps.is_paused(appkey)}

    def next_facts(self, now_ms: int) -> tuple[list[Fact], bool]:
        """Return the next facts, and whether there may be more."""
        expired = self._tasks.expired(now_ms, PAGE)
        due = self._due(now_ms)
        facts = [
            *(_fact(task, decide.expired(task.task_key, now_ms)) for task in expired),
            *(_fact(task, self._due_fact(task.task_key, now_ms)) for task in due),
            *self._resuming(now_ms),
        ]
        return facts, bool(self._resumed) or max(len(expired), len(due)) >= PAGE

    def next_ms(self) -> int | None:
        """Return the time in ms since 1970 at which the next task falls due or the next paused one expires."""
        times = (self._tasks.next_due_ms(), self._tasks.next_expiry_ms())
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def _due(self, now_ms: int) -> Sequence[DueTask]:
        due = self._tasks.due(now_ms, PAGE)
        if len(due) < PAGE:
            return due
        apps = self._tasks.apps_with(Status.WAITING, now_ms)
        first = bisect_right(apps, self._latest_app)
        chosen = [*apps[first:], *apps[:first]][:PAGE]
        self._latest_app = chosen[-1]
        share = PAGE // len(chosen)
        return [task for appkey in chosen for task in self._tasks.due_of_app(appkey, now_ms, share)]

    def _due_fact(self, task_key: str, now_ms: int) -> TaskFact:
        task = self._tasks.find(task_key) if self._apps.has_pauses else None
        is_at_once = task is None or task.scheduled.scheduled.at_once
        if task is None or is_at_once or not any(map(self._apps.is_paused, task.appkeys)):
            return decide.fell_due(task_key, now_ms)
        return decide.paused(task_key, now_ms)

    def _resuming(self, now_ms: int) -> list[Fact]:
        """Return the facts of the next paused tasks of each app that is not paused."""
        facts = []
        share = max(1, PAGE // max(1, len(self._resumed)))
        for appkey, after in list(self._resumed.items()):
            tasks = self._tasks.paused(appkey, after, share)
            if len(tasks) < share:
                del self._resumed[appkey]
            else:
                self._resumed[appkey] = FiringOrder(tasks[-1].scheduled.scheduled.due_ms, tasks[-1].task_key)
            for task in tasks:
                if task.expires_ms > now_ms and not any(map(self._apps.is_paused, task.appkeys)):
                    due = DueTask(appkey, task.task_key, task.partition)
                    facts.append(_fact(due, decide.fell_due(task.task_key, now_ms)))
        return facts


def _fact(task: DueTask, fact: TaskFact) -> Fact:
    return Fact(TASKS, task.partition, task.task_key.encode(), fact)


class Timer:
    """A service that writes the facts of DueTasks. It starts after the follower, so that pending cancels come first."""

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
        """Treat the pauses as changed: before this tenure another process looked through the tasks, or none did."""
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
