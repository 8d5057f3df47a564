"""A rate limiter for pushes with a speed (`qps`), and a circuit breaker with back-off and half-open probes."""

import asyncio
import math

from services.process.clock import Clock

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


# Circuit breaker with exponential back-off and half-open probes.


class CircuitBreaker:
    """Closed at first. `trip` opens it for a back-off that doubles with each trip; after it the circuit is half-open.

    A half-open circuit is neither `is_closed` nor `is_open`: the caller makes one attempt at a time until it calls
    `close` or `trip`. Times are milliseconds since 1970.
    """

    def __init__(self, first_backoff_ms: int, max_backoff_ms: int) -> None:
        self._first_backoff_ms = first_backoff_ms
        self._max_backoff_ms = max_backoff_ms
        self._trips = 0
        self.open_until_ms = 0

    @property
    def is_closed(self) -> bool:
        return self._trips == 0

    def is_open(self, now_ms: int) -> bool:
        return now_ms < self.open_until_ms

    def trip(self, now_ms: int) -> bool:
        """Open the circuit; False if it is open already, as for attempts that began before it opened."""
        if self.is_open(now_ms):
            return False
        self.open_until_ms = now_ms + min(self._first_backoff_ms << min(self._trips, 30), self._max_backoff_ms)
        self._trips += 1
        return True

    def close(self) -> None:
        self._trips = 0
        self.open_until_ms = 0
