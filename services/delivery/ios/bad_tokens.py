"""Judges tokens that Apple calls bad: some are no tokens of the app, many are a fault of its settings.

`BadDeviceToken` means "bad, or of the other environment", and at times it is a fault of Apple's. A wrong environment
gets it for every device of the app, so one answer removes nothing.
"""

from collections import defaultdict

from pyroaring import BitMap

from services.runtime.process.clock import Clock
from services.runtime.process.metrics import APNS_MOSTLY_BAD

CONFIRM_MS = 24 * 3_600_000
"""Shortest time between the first and the last of the answers by which a token is removed."""

MAX_SUSPECTS = 100_000
"""Upper bound of an app's tokens that were called bad and are remembered; others stay until there is a place."""

_FEW = 3
"""Number of answers up to which nothing is said of the app as a whole."""


class BadTokens:
    """What one app's pushes have shown of its tokens since the process began.

    A token is removed if Apple has never accepted it, has called it bad again after a day, and accepts most of the
    app's pushes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._suspects: dict[str, int] = {}
        self._good: defaultdict[int, BitMap] = defaultdict(BitMap)
        self._period_ms = clock.now_ms()
        self._accepted, self._bad = [0, 0], [0, 0]  # answers of the last period and of this one
        self._is_mostly_bad = False

    @property
    def is_mostly_bad(self) -> bool:
        """Whether Apple calls most of the app's tokens bad: its environment, bundle id or key is probably wrong."""
        return self._is_mostly_bad

    def accepted(self, token: str, partition: int, number: int) -> None:
        """Note that Apple has accepted a push to the device with this number in the partition."""
        self._good[partition].add(number)
        if self._suspects:
            self._suspects.pop(token, None)
        self._begin_period()
        self._accepted[1] += 1
        if self._is_mostly_bad:
            self._judge_app()

    def refused(self, token: str, partition: int, number: int) -> int | None:
        """Note that Apple has called the token bad. Return when it did so first, if the token is to be removed: a
        device that has registered since has shown that it is alive.
        """
        self._begin_period()
        self._bad[1] += 1
        self._judge_app()
        if number in self._good[partition]:
            return None
        now_ms = self._clock.now_ms()
        first_ms = self._suspects.get(token)
        if first_ms is None:
            if len(self._suspects) < MAX_SUSPECTS:
                self._suspects[token] = now_ms
            return None
        if now_ms - first_ms < CONFIRM_MS or not self._accepts_most:
            return None
        del self._suspects[token]
        return first_ms

    def close(self) -> None:
        """Count the app no more."""
        self._say(is_mostly_bad=False)

    @property
    def _accepts_most(self) -> bool:
        return sum(self._accepted) > sum(self._bad)

    def _begin_period(self) -> None:
        now_ms = self._clock.now_ms()
        passed_ms = now_ms - self._period_ms
        if passed_ms >= CONFIRM_MS:
            for counts in (self._accepted, self._bad):
                counts[:] = [counts[1] if passed_ms < 2 * CONFIRM_MS else 0, 0]
            self._period_ms = now_ms

    def _judge_app(self) -> None:
        self._say(is_mostly_bad=not self._accepts_most and sum(self._bad) > _FEW)

    def _say(self, *, is_mostly_bad: bool) -> None:
        if is_mostly_bad != self._is_mostly_bad:
            self._is_mostly_bad = is_mostly_bad
            APNS_MOSTLY_BAD.inc(1 if is_mostly_bad else -1)
