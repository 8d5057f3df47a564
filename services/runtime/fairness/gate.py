"""Bounded concurrency for work that several keys, usually apps, ask for at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.runtime.errors import BusyError
from services.runtime.fairness.queue import FairQueue


class FairGate:
    """Admits at most `slots` callers at once, of one key at most `slots_per_key`; the others wait and enter in turn.

    Which waiting key is next follows from `FairQueue`: one with much waiting work delays another by one turn for each
    slot, however much it has. Of one key at most `max_waiting` callers wait; the next one gets BusyError at once.
    While no one waits, entering is a comparison and no step of the event loop.
    """

    def __init__(self, what: str, slots: int, *, slots_per_key: int | None = None, max_waiting: int) -> None:
        """`what`: the work in words, for the error."""
        self._what = what
        self._slots = slots
        self._slots_per_key = slots_per_key or slots
        self._max_waiting = max_waiting
        self._running: Counter[str] = Counter()
        self._count = 0
        self._queue: FairQueue[str, asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def turn(self, key: str, size: float = 1) -> AsyncIterator[None]:
        """Hold a slot inside the `async with`. BusyError: too many callers of the key wait already."""
        await self.enter(key, size)
        try:
            yield
        finally:
            self.leave(key)

    async def enter(self, key: str, size: float = 1) -> None:
        """Take a slot, which the caller gives back by `leave`; a cancelled caller has none. BusyError: see `turn`."""
        if not self._queue and self._count < self._slots and self._may_run(key):
            self._start(key)
            return
        if self._queue.waiting(key) >= self._max_waiting:
            raise BusyError(f"{self._max_waiting} {self._what} of app {key} wait already; try again later")
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(key, admitted, size)
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.leave(key)
            else:
                self._queue.discard(key, admitted)
            raise

    def leave(self, key: str) -> None:
        """Give a slot back."""
        self._count -= 1
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._count < self._slots:
            taken = self._queue.take(self._may_run)
            if taken is None:
                return
            key, admitted = taken
            if not admitted.done():
                self._start(key)
                admitted.set_result(None)

    def _start(self, key: str) -> None:
        self._count += 1
        self._running[key] += 1

    def _may_run(self, key: str) -> bool:
        return self._running[key] < self._slots_per_key
