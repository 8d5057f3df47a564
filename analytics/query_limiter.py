"""Limits the concurrent queries of the store fairly: an app's queries delay another app by one query at most.

Exports, which may take an hour, are made one at a time beside the queries.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.runtime.errors import BusyError
from services.runtime.fairness.activity import Activity
from services.runtime.fairness.semaphore import FairSemaphore
from services.runtime.fairness.throttle import Throttle
from services.runtime.process.clock import Clock

OPERATORS = ""
"""The key of audits, which operators ask for."""

QUERIES = 3
"""Calls that query at once: one less than the store has threads for queries, because an export may hold one."""

MAX_WAITING = 200
_EXPORT_WAIT_S = 60


class QueryLimiter:
    """Concurrency limiter: at most QUERIES calls at once, and one call of each app while several apps query."""

    def __init__(self, clock: Clock) -> None:
        self._activity = Activity(clock.now_ms)
        throttle = Throttle(clock, self._activity, 1)
        self._semaphore = FairSemaphore("queries", QUERIES, max_waiting=MAX_WAITING, throttle=throttle)
        self._export = asyncio.Lock()

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        """Hold a slot during one call; a caller cancelled while it waits takes none. BusyError: too many wait."""
        self._activity.seen(key)
        async with self._semaphore.slot(key):
            yield

    @asynccontextmanager
    async def export(self) -> AsyncIterator[None]:
        """Hold the only slot of exports during one. BusyError: another export held it for _EXPORT_WAIT_S."""
        try:
            async with asyncio.timeout(_EXPORT_WAIT_S):
                await self._export.acquire()
        except TimeoutError:
            raise BusyError("another export is in progress; try again once it has ended") from None
        try:
            yield
        finally:
            self._export.release()
