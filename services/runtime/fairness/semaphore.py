"""Bounded concurrency for work that several keys, usually apps, ask for at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.runtime.errors import BusyError
from services.runtime.fairness.queue import FairQueue
from services.runtime.fairness.throttle import Throttle


class Slot:
    """One of the slots of a semaphore, which its holder gives back by `release`."""

    __slots__ = ("_is_released", "_key", "_semaphore", "_since_ms")

    def __init__(self, semaphore: "FairSemaphore", key: str, since_ms: int) -> None:
        self._semaphore = semaphore
        self._key = key
        self._since_ms = since_ms
        self._is_released = False

    def release(self) -> None:
        """Give the slot back; again without effect."""
        if not self._is_released:
            self._is_released = True
            self._semaphore._release(self._key, self._since_ms)


class FairSemaphore:
    """Admits at most `slots` callers at once, of each key as many as the `throttle` allows; the others wait.

    Which waiting key is next follows from `FairQueue`: a key with much waiting work delays another by one turn for each
    slot, however much it has. Of one key work of the size `max_waiting` waits at most; what exceeds that is refused at
    once (BusyError). While no one waits, acquiring is a few comparisons and no step of the event loop.
    """

    def __init__(self, what: str, slots: int, *, max_waiting: float, throttle: Throttle | None = None) -> None:
        """`what`: the work in words, for the error."""
        self._what = what
        self._slots = slots
        self._max_waiting = max_waiting
        self._throttle = throttle
        self._held: Counter[str] = Counter()
        self._count = 0
        self._queue: FairQueue[str, asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def slot(self, key: str, size: float = 1) -> AsyncIterator[None]:
        """Hold a slot inside the `async with`. BusyError: too much of the key waits."""
        slot = await self.acquire(key, size)
        try:
            yield
        finally:
            slot.release()

    async def acquire(self, key: str, size: float = 1) -> Slot:
        """Wait for a slot and take it; a cancelled caller has none. BusyError: too much of the key waits."""
        if not self._queue and self._count < self._slots and self._may_acquire(key):
            self._take(key)
        else:
            await self._wait(key, size)
        return Slot(self, key, self._now_ms())

    async def _wait(self, key: str, size: float) -> None:
        waiting = self._queue.waiting_size(key)
        if waiting and waiting + size > self._max_waiting:
            raise BusyError(f"too many {self._what} wait already, while others have their turns; try again")
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(key, admitted, size)
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self._queue.discard(key, admitted)
            else:
                self._release(key, self._now_ms())
            raise

    def _release(self, key: str, since_ms: int) -> None:
        self._count -= 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        if self._throttle is not None:
            self._throttle.left(key, since_ms, self._admit)
        self._admit()

    def _take(self, key: str) -> None:
        self._count += 1
        self._held[key] += 1

    def _admit(self) -> None:
        while self._queue and self._count < self._slots:
            taken = self._queue.take(self._may_acquire)
            if taken is None:
                return
            key, admitted = taken
            if not admitted.done():
                self._take(key)
                admitted.set_result(None)

    def _may_acquire(self, key: str) -> bool:
        return self._throttle is None or self._throttle.may_enter(key, self._held[key])

    def _now_ms(self) -> int:
        return 0 if self._throttle is None else self._throttle.now_ms()
