"""Clocks of simulated processes."""

import asyncio

from services.process.clock import SystemClock

START_MS = 1_790_000_010_000
"""What a right clock shows at the world's beginning: 2026-09-21 14:13:30 UTC."""


class ProcessClock(SystemClock):
    """The clock of one simulated machine. It may be ahead or behind, drift, and be set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset_ms: int = 0, drift: float = 0.0) -> None:
        """`drift`: seconds that the clock gains in each second."""
        self._loop = loop
        self._start_ms = START_MS + offset_ms
        self._rate = 1 + drift

    def now_ms(self) -> int:
        return self._start_ms + int(self._loop.time() * 1000 * self._rate)

    def set_by(self, difference_ms: int) -> None:
        """Set the clock forward, or back where the difference is negative. Timers of the loop are not affected."""
        self._start_ms += difference_ms

    def drift(self, seconds: float) -> None:
        """Let the clock gain so many seconds in each second from now on, or lose them where this is negative."""
        now_ms, self._rate = self.now_ms(), 1 + seconds
        self._start_ms = now_ms - int(self._loop.time() * 1000 * self._rate)
