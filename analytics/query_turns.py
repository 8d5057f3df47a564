"""Fair concurrency of queries at the store: one app's readers delay those of another app by one query."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.runtime.fairness.activity import Activity
from services.runtime.fairness.semaphore import FairSemaphore
from services.runtime.fairness.throttle import Throttle
from services.runtime.process.clock import Clock

OPERATORS = ""
"""The key of audits, which operators ask for."""

QUERIES = 3
"""Calls that query at once: one less than the store has threads, so that ingestion never waits for readers."""

MAX_WAITING = 200


class QueryTurns:
    """Admits at most QUERIES calls at once, of one app beside others a single one."""

    def __init__(self, clock: Clock) -> None:
        self._activity = Activity(clock.now_ms)
        throttle = Throttle(clock, self._activity, 1)
        self._semaphore = FairSemaphore("queries", QUERIES, max_waiting=MAX_WAITING, throttle=throttle)

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Hold a turn for one call; a caller that leaves while it waits takes none. BusyError: too many wait."""
        self._activity.seen(key)
        async with self._semaphore.slot(key):
            yield
