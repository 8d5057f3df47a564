"""Spreads messages over time."""

import asyncio
import math

from services.runtime.clock import Clock

_TICK_MS = 20


class Pace:
    """So many messages a second from now on, exact over time; 0: as fast as can be."""

    def __init__(self, clock: Clock, per_s: float) -> None:
        self._clock = clock
        self._per_s = per_s
        self._since_ms = clock.now_ms()
        self._gone = 0

    async def free(self, most: int) -> int:
        """How many may go now, 1 to `most`; waits until there is one. Say with `went` how many really went."""
        await asyncio.sleep(0)
        if self._per_s == 0:
            return most
        while (free := self._due() - self._gone) <= 0:
            next_ms = self._since_ms + math.ceil(self._gone * 1000 / self._per_s)
            await self._clock.sleep_until(max(next_ms, self._clock.now_ms() + _TICK_MS))
        return min(free, most)

    def went(self, count: int) -> None:
        self._gone += count

    def _due(self) -> int:
        return 1 + int((self._clock.now_ms() - self._since_ms) * self._per_s / 1000)
