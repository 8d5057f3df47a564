"""Throttling of keys, usually apps, that share a semaphore with other active keys."""

from collections.abc import Callable
from functools import partial

from services.runtime.fairness.activity import Activity
from services.runtime.process.clock import Clock

_MAX_REST_MS = 2_000


class Throttle:
    """Limits each key while other keys are active; a key that is alone is not limited.

    A key holds at most `slots` slots of a semaphore at once. After each slot it rests for `rest` times as long as it
    held the slot, at most 2 s: with one slot and `rest` 1 a key works half of the time, whatever its work costs.
    """

    def __init__(self, clock: Clock, activity: Activity, slots: int, rest: float = 0) -> None:
        self._clock = clock
        self._activity = activity
        self._slots = slots
        self._rest = rest
        self._rest_ends_ms: dict[str, int] = {}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def may_enter(self, key: str, held: int) -> bool:
        """Return whether a key that holds `held` slots may take another."""
        return key not in self._rest_ends_ms and (held < self._slots or self._activity.is_alone(key))

    def left(self, key: str, since_ms: int, rested: Callable[[], None]) -> None:
        """Note the end of a slot that was taken at `since_ms`; `rested` is called when the key's rest is over."""
        now_ms = self._clock.now_ms()
        rest_ms = min(round(self._rest * (now_ms - since_ms)), _MAX_REST_MS)
        if rest_ms <= 0 or self._activity.is_alone(key):
            return
        is_resting = key in self._rest_ends_ms
        self._rest_ends_ms[key] = max(now_ms + rest_ms, self._rest_ends_ms.get(key, 0))
        if not is_resting:
            self._end_rest(key, rested)

    def _end_rest(self, key: str, rested: Callable[[], None]) -> None:
        """End the key's rest now or at its time: by a timer, because slots are also left while an event loop is closed
        and takes no new task."""
        end_ms = self._rest_ends_ms[key]
        if end_ms > self._clock.now_ms():
            self._clock.call_at(end_ms, partial(self._end_rest, key, rested))
            return
        del self._rest_ends_ms[key]
        rested()


class SharedThrottle(Throttle):
    """A throttle whose rests are common: after a slot of any key, all keys rest.

    It limits them while any key is active, because it is not known yet which active key their work belongs to.
    """

    _ALL = ""

    def may_enter(self, key: str, held: int) -> bool:
        return super().may_enter(self._ALL, held)

    def left(self, key: str, since_ms: int, rested: Callable[[], None]) -> None:
        super().left(self._ALL, since_ms, rested)
