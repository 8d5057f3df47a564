"""Clocks: the system's, a steady one, and one that tests advance; and a watch for times when the process hung."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from services.errors import UnavailableError
from services.process.logs import logger
from services.process.metrics import CLOCK_CORRECTION


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


HUNG_MS = 30_000
"""Time without running after which a process has hung; clients wait about as long for an answer."""

WARY_MS = 5_000
"""Time after a hang in which every request counts as an old one: until the process has read its sockets."""

_LOOK_MS = 5_000
_NS_PER_MS = 1_000_000
_ADJUST_NS = 100 * _NS_PER_MS
_APART_NS = 1000 * _NS_PER_MS
_SLEW_SHARE = 10

_elapsed_ns = partial(time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns the real time since the machine's start; on Linux with the time in which it was suspended."""


def _elapsed_ms() -> int:
    return _elapsed_ns() // _NS_PER_MS


class SystemClock:
    """The machine's clock. It sleeps a minute at most at a time, so that it notices when the clock was set."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, moment_ms: int) -> None:
        while (left_ms := moment_ms - self.now_ms()) > 0:
            await asyncio.sleep(min(left_ms / 1000, 60))

    def call_at(self, moment_ms: int, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later((moment_ms - self.now_ms()) / 1000, callback)


class SteadyClock(SystemClock):
    """The machine's clock without its jumps: it advances with real time, and follows the host's clock slowly.

    It gains or loses a tenth at most, so that no deadline falls due much too early or late: it takes ten hours to make
    up a difference of one hour. `follow` sets a difference to the host's clock, such as that to the clocks of other
    hosts.
    """

    def __init__(self, host_ns: Callable[[], int] = time.time_ns, elapsed_ns: Callable[[], int] = _elapsed_ns) -> None:
        """`elapsed_ns`: real time since any moment, during which the machine may have been suspended."""
        self._host_ns = host_ns
        self._elapsed_ns = elapsed_ns
        elapsed = elapsed_ns()
        self._adjusted = elapsed, host_ns() - elapsed
        self._difference_ns = 0
        self._follows = False
        self._is_apart = False

    def now_ms(self) -> int:
        elapsed_ns = self._elapsed_ns()
        adjusted_ns, ahead_ns = self._adjusted  # read and replaced as one, because threads ask for the time too
        if elapsed_ns - adjusted_ns >= _ADJUST_NS:
            ahead_ns = self._adjust(elapsed_ns, elapsed_ns - adjusted_ns, ahead_ns)
        return (elapsed_ns + ahead_ns) // _NS_PER_MS

    def _adjust(self, elapsed_ns: int, passed_ns: int, ahead_ns: int) -> int:
        """Look at the host's clock; return the difference between the time and real time from now on."""
        apart_ns = self._host_ns() + self._difference_ns - elapsed_ns - ahead_ns
        most_ns = passed_ns // _SLEW_SHARE
        ahead_ns += min(max(apart_ns, -most_ns), most_ns)
        self._adjusted = elapsed_ns, ahead_ns
        if (abs(apart_ns) > _APART_NS) is not self._is_apart:
            self._note(apart_ns)
        return ahead_ns

    def host_ms(self) -> int:
        """Return the host's clock as it is."""
        return self._host_ns() // _NS_PER_MS

    def follow(self, difference_ms: int) -> None:
        """Follow the host's clock and this difference: at the first call at once, later slowly."""
        self._difference_ns = difference_ms * _NS_PER_MS
        if not self._follows:
            self._follows = True
            elapsed_ns = self._elapsed_ns()
            self._adjusted = elapsed_ns, self._host_ns() + self._difference_ns - elapsed_ns
        CLOCK_CORRECTION.set((self.now_ms() - self.host_ms()) / 1000)

    def _note(self, apart_ns: int) -> None:
        self._is_apart = not self._is_apart
        if self._is_apart:
            logger.warning(
                "the host's clock was set; the process follows slowly, and at once when it is started again",
                seconds=round(apart_ns / _NS_PER_MS / 1000, 3),
            )
        else:
            logger.info("the process has the time of the host's clock again")


class HangWatch:
    """Service that notices that the process did not run for HUNG_MS or longer, as when its machine was suspended.

    Requests that waited in its sockets are as old then: their senders may have repeated them elsewhere.
    """

    name = "hangs"

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        """`now_ms`: the time in ms since any moment; by default real time, whatever the clocks show."""
        self._now_ms = now_ms or _elapsed_ms
        self._due_ms: int | None = None
        self._wary_until_ms = 0

    async def run(self, ready: asyncio.Event) -> None:
        self._due_ms = self._now_ms() + _LOOK_MS
        ready.set()
        while True:
            await asyncio.sleep(_LOOK_MS / 1000)
            self._look()
            self._due_ms = self._now_ms() + _LOOK_MS

    def check(self) -> None:
        """Check that the process has not hung just now.

        UnavailableError: the process hung until less than WARY_MS ago.
        """
        self._look()
        if self._now_ms() < self._wary_until_ms:
            raise UnavailableError("the process did not run for a while, and nothing was done; repeat the request")

    def _look(self) -> None:
        now_ms = self._now_ms()
        if self._due_ms is not None and now_ms - self._due_ms >= HUNG_MS:
            logger.warning("the process did not run for a while", seconds=(now_ms - self._due_ms) // 1000)
            self._due_ms, self._wary_until_ms = now_ms, now_ms + WARY_MS


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
