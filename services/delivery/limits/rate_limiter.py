"""Rate limiter for pushes with a speed (`qps`)."""

import asyncio
import math

from services.runtime.process.clock import Clock

CATCH_UP_MS = 250
"""Upper bound of the lost time that is made up for: a longer pause is not followed by a burst."""

_TICK_MS = 20


class RateLimiter:
    """Allows `per_s` messages a second (0 = unlimited), at most 1.025 times that over any 10 s."""

    def __init__(self, clock: Clock, per_s: float) -> None:
        self._clock = clock
        self._ms_per_message = 1000 / per_s if per_s else 0.0
        self._next_ms = float(clock.now_ms())

    async def wait_allowed(self, most: int) -> int:
        """Wait until a message may be sent; return how many may be, 1 to `most`. `consume` takes the number sent."""
        await asyncio.sleep(0)
        if not self._ms_per_message:
            return most
        while (late_ms := self._clock.now_ms() - self._next_ms) < 0:
            await self._clock.sleep_until(max(math.ceil(self._next_ms), self._clock.now_ms() + _TICK_MS))
        if late_ms > CATCH_UP_MS:
            self._next_ms += late_ms - CATCH_UP_MS
            late_ms = CATCH_UP_MS
        return min(1 + int(late_ms / self._ms_per_message), most)

    def consume(self, count: int) -> None:
        self._next_ms += count * self._ms_per_message
