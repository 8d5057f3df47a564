"""Clocks: the system's, and one that tests advance."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """Wall-clock time in milliseconds since 1970 UTC, and waiting for a moment."""

    def now_ms(self) -> int: ...

    async def sleep_until(self, moment_ms: int) -> None:
        """Return once now_ms() >= moment_ms."""
        ...

    def call_at(self, moment_ms: int, callback: Callable[[], None]) -> None:
        """Call the function at about the moment, unless the event loop has been closed before."""
        ...


async def wait_for_first(clock: Clock, moment_ms: int | None, *events: asyncio.Event) -> None:
    """Return at the moment, if there is one, or when one of the events is set."""
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in events]
    if moment_ms is not None:
        waits.append(asyncio.create_task(clock.sleep_until(moment_ms)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class SystemClock:
    """The machine's clock. It sleeps a minute at most at a time, so that it notices when the clock was set."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, moment_ms: int) -> None:
        while (left_ms := moment_ms - self.now_ms()) > 0:
            await asyncio.sleep(min(left_ms / 1000, 60))

    def call_at(self, moment_ms: int, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later((moment_ms - self.now_ms()) / 1000, callback)


class ManualClock:
    """A clock for tests that only `move` advances."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    def now_ms(self) -> int:
        return self._now_ms

    async def sleep_until(self, moment_ms: int) -> None:
        if moment_ms > self._now_ms:
            await self._until(moment_ms)

    def call_at(self, moment_ms: int, callback: Callable[[], None]) -> None:
        self._until(moment_ms).add_done_callback(lambda _: callback())

    def move(self, seconds: float) -> None:
        """Advance the clock and wake the sleepers whose moment has come."""
        self._now_ms += round(seconds * 1000)
        self._wake()

    def _until(self, moment_ms: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (moment_ms, next(self._count), future))
        self._wake()
        return future

    def _wake(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._now_ms:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)
