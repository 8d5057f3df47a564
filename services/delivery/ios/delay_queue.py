"""Priority queue of items by due time, with one timer for the earliest."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from services.runtime.process import background
from services.runtime.process.clock import Clock

Item = TypeVar("Item")


class DelayQueue(Generic[Item]):
    """Calls `on_due` when an item is due; `take_due` then removes it."""

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._heap: list[tuple[int, int, Item]] = []
        self._sequence = itertools.count()
        self._timer: asyncio.Task[None] | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, due_ms: int, item: Item) -> None:
        heapq.heappush(self._heap, (due_ms, next(self._sequence), item))
        if self._timer is None or due_ms < self._timer_ms:
            self._start_timer()

    def take_due(self) -> list[Item]:
        """Remove and return the items that are due, in the order of their times."""
        due = []
        while self._heap and self._heap[0][0] <= self._clock.now_ms():
            due.append(heapq.heappop(self._heap)[2])
        if self._timer is None and self._heap:
            self._start_timer()
        return due

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        self.close()
        self._timer_ms = self._heap[0][0]
        self._timer = background.start("timer of retries", self._sleep_until(self._timer_ms))

    async def _sleep_until(self, due_ms: int) -> None:
        await self._clock.sleep_until(due_ms)
        self._timer = None
        self._on_due()
