"""App opens per device and day, and their sums over the last days."""

from datetime import datetime
from zoneinfo import ZoneInfo

from pyroaring import BitMap

from services.targeting.counts import Counts

WINDOWS = (1, 7, 30, 90)
"""The sums that can be asked for: opens in the last N days, today included."""

_KEPT_DAYS = max(WINDOWS) + 1
"""One more than the longest window: a gateway's clock may be in tomorrow while ours is still in today."""


def day_of(time_ms: int, zone: ZoneInfo) -> int:
    """The day, counted from 0001-01-01 = 1, on which a moment (milliseconds since 1970 UTC) falls in the zone."""
    return datetime.fromtimestamp(time_ms / 1000, zone).toordinal()


class Activity:
    """One app's opens in one partition, for the 91 days up to the newest day that was counted.

    What is kept depends on the events alone and not on when they are folded, so a replay ends in the same state.
    A window's sum is made when it is first asked for, and then moves along with the days.
    """

    def __init__(self, days: dict[int, Counts] | None = None) -> None:
        self.days = days or {}
        self._newest = max(self.days, default=0)
        self._today = 0
        self._sums: dict[int, Counts] = {}

    def add(self, number: int, day: int) -> None:
        """Count one open of the device on the day; a day too old to matter is passed over."""
        if day <= self._newest - _KEPT_DAYS:
            return
        if day > self._newest:
            self._begin(day)
        counts = self.days.get(day)
        if counts is None:
            counts = self.days[day] = Counts()
        counts.add(number)
        for window, total in self._sums.items():
            if self._today - window < day <= self._today:
                total.add(number)

    def at_least(self, opens: int, window: int, today: int) -> BitMap:
        """The devices that opened the app `opens` times (1 or more) in the `window` days up to today."""
        self._move(today)
        total = self._sums.get(window)
        if total is None:
            total = self._sums[window] = Counts()
            for day, counts in self.days.items():
                if today - window < day <= today:
                    total.plus(counts)
        return total.at_least(opens)

    def _begin(self, day: int) -> None:
        self._move(day)
        self._newest = day
        for old in [known for known in self.days if known <= day - _KEPT_DAYS]:
            del self.days[old]

    def _move(self, today: int) -> None:
        """Make the sums those of another day: count in the days that enter a window, then out those that leave it."""
        if today == self._today:
            return
        for window, total in self._sums.items():
            before = range(self._today - window + 1, self._today + 1)
            after = range(today - window + 1, today + 1)
            for day in self.days:
                if day in after and day not in before:
                    total.plus(self.days[day])
            for day in self.days:
                if day in before and day not in after:
                    total.minus(self.days[day])
        self._today = today
