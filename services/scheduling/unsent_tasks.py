"""Lets callers wait until tasks without a set time are sent."""

import asyncio

from services.runtime.errors import UnavailableError
from services.runtime.process import background
from services.runtime.projection.follower import Follower
from services.scheduling.store import TaskTable


class UnsentTasks:
    """The tasks without a set time that callers wait for; each change of the state costs one query for all of them."""

    def __init__(self, follower: Follower, committed: TaskTable) -> None:
        self._follower = follower
        self._tasks = committed
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def wait_sent(self, task_key: str) -> None:
        """Return once the task is sent. The caller sets the deadline."""
        future = self._waiting.get(task_key)
        if future is None:
            future = self._waiting[task_key] = asyncio.get_running_loop().create_future()
        if self._watching is None or self._watching.done():
            self._watching = background.start("watch for sent tasks", self._watch())
        await asyncio.shield(future)

    async def _watch(self) -> None:
        try:
            while self._waiting:
                change = self._follower.applied.change
                unsent = await self._follower.query(self._tasks.at_once)
                for task_key in [key for key in self._waiting if key not in unsent]:
                    self._waiting.pop(task_key).set_result(None)
                if self._waiting:
                    await change.wait()
        except UnavailableError:
            return  # scheduling is stopping
        finally:
            while self._waiting:
                self._waiting.popitem()[1].cancel()
