"""Spreads messages over time."""

import asyncio
import math

from services.runtime.process.clock import Clock

CATCH_UP_MS = 250
"""How far a pace that could not be kept is caught up with; what was missed before that is not sent in a burst."""

_TICK_MS = 20


class Pace:
    """So many messages a second from now on, in no ten seconds over 1.025 times as many; 0: as fast as can be."""

    def __init__(self, clock: Clock, per_s: float) -> None:
        self._clock = clock
        self._ms_each = 1000 / per_s if per_s else 0.0
        self._next_ms = float(clock.now_ms())

    async def free(self, most: int) -> int:
        """How many may go now, 1 to `most`; waits until there is one. Say with `went` how many really went."""
        await asyncio.sleep(0)
        if not self._ms_each:
            return most
        while (late_ms := self._clock.now_ms() - self._next_ms) < 0:
            await self._clock.sleep_until(max(math.ceil(self._next_ms), self._clock.now_ms() + _TICK_MS))
        if late_ms > CATCH_UP_MS:
            self._next_ms += late_ms - CATCH_UP_MS
            late_ms = CATCH_UP_MS
        return min(1 + int(late_ms / self._ms_each), most)

    def went(self, count: int) -> None:
        self._next_ms += count * self._ms_each
