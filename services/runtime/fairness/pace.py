"""How much a key, usually an app, may do beside other active keys."""

import asyncio
from collections.abc import Callable

from services.runtime.fairness.activity import Activity
from services.runtime.process import background
from services.runtime.process.clock import Clock

_MAX_REST_MS = 2_000


class Pace:
    """Limits keys that are not alone: each holds at most `slots` of a gate at once, and rests after each of them for
    `rest` times as long as it held it, 2 s at most. With one slot and `rest` 1 a key works half of the time, whatever
    its work costs. A key that is alone is not limited.
    """

    def __init__(self, clock: Clock, activity: Activity, slots: int, rest: float = 0) -> None:
        self._clock = clock
        self._activity = activity
        self._slots = slots
        self._rest = rest
        self._rest_ends_ms: dict[str, int] = {}
        self._resting: dict[str, asyncio.Task[None]] = {}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def may_enter(self, key: str, held: int) -> bool:
        """Return whether a key that holds so many slots may take another."""
        return key not in self._resting and (held < self._slots or self._activity.is_alone(key))

    def left(self, key: str, since_ms: int, rested: Callable[[], None]) -> None:
        """Note the end of a slot that was taken at `since_ms`; `rested` is called when the key's rest is over."""
        now_ms = self._clock.now_ms()
        rest_ms = min(round(self._rest * (now_ms - since_ms)), _MAX_REST_MS)
        if rest_ms <= 0 or self._activity.is_alone(key):
            return
        self._rest_ends_ms[key] = max(now_ms + rest_ms, self._rest_ends_ms.get(key, 0))
        if key not in self._resting:
            self._resting[key] = background.start("rest", self._let_rest(key, rested))

    async def _let_rest(self, key: str, rested: Callable[[], None]) -> None:
        while (end_ms := self._rest_ends_ms[key]) > self._clock.now_ms():
            await self._clock.sleep_until(end_ms)
        del self._rest_ends_ms[key], self._resting[key]
        rested()


class CommonPace(Pace):
    """A pace at which all keys rest together: their work takes at most that share of the time, however many they are.

    They are limited while any other key is active.
    """

    _ALL = ""

    def may_enter(self, key: str, held: int) -> bool:
        return super().may_enter(self._ALL, held)

    def left(self, key: str, since_ms: int, rested: Callable[[], None]) -> None:
        super().left(self._ALL, since_ms, rested)
