"""Things to be done at a moment, and an alarm for the first of them."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from services.runtime.process.clock import Clock

Item = TypeVar("Item")


class DelayQueue(Generic[Item]):
    """`ring` is called when something is due; `due` takes it out."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._items: list[tuple[int, int, Item]] = []
        self._count = itertools.count()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_ms = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, moment_ms: int, item: Item) -> None:
        heapq.heappush(self._items, (moment_ms, next(self._count), item))
        if self._alarm is None or moment_ms < self._alarm_ms:
            self._set_alarm()

    def due(self) -> list[Item]:
        """What is due by now, in order."""
        found = []
        while self._items and self._items[0][0] <= self._clock.now_ms():
            found.append(heapq.heappop(self._items)[2])
        if self._alarm is None and self._items:
            self._set_alarm()
        return found

    def close(self) -> None:
        """No alarm rings any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _set_alarm(self) -> None:
        self.close()
        self._alarm_ms = self._items[0][0]
        self._alarm = asyncio.create_task(self._sleep(self._alarm_ms))

    async def _sleep(self, moment_ms: int) -> None:
        await self._clock.sleep_until(moment_ms)
        self._alarm = None
        self._ring()
