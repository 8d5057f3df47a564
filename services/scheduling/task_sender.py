"""Sends the tasks that fell due: each app's in order, apps independently of each other."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from services.domain.command_writer import CommandWriter
from services.domain.push_capacity import PushCapacity
from services.domain.token_resolver import TokenAndAliasResolver
from services.log.batcher import Batcher, ByteBudget
from services.process import background
from services.process.clock import Clock
from services.replica.follower import Follower
from services.replica.store import Fact
from services.scheduling.app_sender import Approvals, AppTaskSender
from services.scheduling.state import Status
from services.scheduling.store import TaskTable

_MAX_FACTS = 500


class TaskSender:
    """A service with a background task for each app that has tasks to send; facts of all apps share appends.

    A standby sends nothing. An error that a retry does not mend, such as a state that cannot be written, ends the
    service.
    """

    name = "scheduling sender"

    def __init__(
        self,
        follower: Follower,
        tasks: TaskTable,
        resolver: TokenAndAliasResolver,
        capacity: PushCapacity,
        approvals: Approvals,
        writer: CommandWriter,
        clock: Clock,
    ) -> None:
        self._follower = follower
        self._tasks = tasks
        facts: Batcher[Fact, None] = Batcher(self._write, ByteBudget(0), _MAX_FACTS)
        self._new_app = partial(AppTaskSender, follower, tasks, resolver, capacity, approvals, writer, facts, clock)
        self._apps: dict[str, AppTaskSender] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[None]

    async def run(self, ready: asyncio.Event) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        if self._follower.tenure.stands_by:
            ready.set()
        try:
            while True:
                tenure_end = await self._follower.tenure.wait()
                self._wake_up(await self._follower.query(self._tasks.apps_with, Status.FELL_DUE))
                ready.set()
                await self._send_until(tenure_end)
        finally:
            if not self._ended.cancel():
                self._ended.exception()

    async def _send_until(self, tenure_end: asyncio.Event) -> None:
        """Let the apps' tasks send until the tenure ends. An error of one of them is raised."""
        waiting = asyncio.create_task(tenure_end.wait())
        try:
            waits: list[asyncio.Future[Any]] = [self._ended, waiting]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                self._ended.result()
        finally:
            waiting.cancel()
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def send(self, task_keys: Sequence[str]) -> None:
        """Send these tasks, which fell due, as soon as it is their app's turn.

        Where the tenure has ended meanwhile, the next owner sends them.
        """
        if task_keys:
            appkeys = await self._follower.query(self._tasks.apps_of, task_keys)
            if self._follower.tenure.is_held:
                self._wake_up(appkeys)

    def _wake_up(self, appkeys: Iterable[str]) -> None:
        for appkey in appkeys:
            app = self._apps.get(appkey)
            if app is None:
                app = self._apps[appkey] = self._new_app(appkey)
                task = background.start(f"timed tasks of app {appkey}", self._send_all(appkey, app))
                self._sending.add(task)
                task.add_done_callback(partial(self._end, appkey, app))
            app.wake_up()

    async def _send_all(self, appkey: str, app: AppTaskSender) -> None:
        try:
            await app.run()
        finally:
            self._forget(appkey, app)

    def _forget(self, appkey: str, app: AppTaskSender) -> None:
        if self._apps.get(appkey) is app:
            del self._apps[appkey]

    def _end(self, appkey: str, app: AppTaskSender, task: "asyncio.Task[None]") -> None:
        self._forget(appkey, app)  # a task that is cancelled before its first step never does this itself
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self._ended.done():
            self._ended.set_exception(error)

    async def _write(self, facts: list[Fact]) -> Sequence[None]:
        await self._follower.write(lambda: facts)
        return [None] * len(facts)
