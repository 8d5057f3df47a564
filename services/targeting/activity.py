"""Counts of app opens by device and day, and their sums over rolling windows of days."""

from datetime import datetime
from zoneinfo import ZoneInfo

from pyroaring import BitMap

from services.targeting.bit_sliced_counts import BitSlicedCounts

WINDOWS = (1, 7, 30, 90)
"""The windows that filters can name: the last N days, today included."""

_STORED_DAYS = max(WINDOWS) + 8
"""Eight more than the longest window: tomorrow, in which a gateway's clock may be already, and seven days that a
gateway's clock named which was ahead."""


def day_of(time_ms: int, zone: ZoneInfo) -> int:
    """Return the ordinal (0001-01-01 = 1) of the zone's day at a time in ms since 1970 UTC."""
    return datetime.fromtimestamp(time_ms / 1000, zone).toordinal()


class Activity:
    """The app opens of one app in one partition, for the 98 latest of the days that had any.

    The stored days depend on the events alone and not on when or in which order they are folded, so a replay ends in
    the same state. A day that a wrong clock named takes the place of one day, the earliest, and of no other; its opens
    count when that day comes. The sum of a window is computed at the first query and then moved along with the days.
    """

    def __init__(self, days: dict[int, BitSlicedCounts] | None = None) -> None:
        self.days = days or {}
        self._today = 0
        self._sums: dict[int, BitSlicedCounts] = {}

    def add(self, number: int, day: int) -> None:
        """Count one open of the device on the day, unless 98 later days are stored."""
        counts = self.days.get(day)
        if counts is None:
            if len(self.days) == _STORED_DAYS:
                if day < (earliest := min(self.days)):
                    return
                self._delete(earliest)
            counts = self.days[day] = BitSlicedCounts()
        counts.increment(number)
        for window, total in self._sums.items():
            if self._today - window < day <= self._today:
                total.increment(number)

    def at_least(self, opens: int, window: int, today: int) -> BitMap:
        """Return the devices that opened the app `opens` times (1 or more) in the `window` days up to today."""
        self._move(today)
        total = self._sums.get(window)
        if total is None:
            total = self._sums[window] = BitSlicedCounts()
            for day, counts in self.days.items():
                if today - window < day <= today:
                    total.add(counts)
        return total.at_least(opens)

    def _delete(self, day: int) -> None:
        counts = self.days.pop(day)
        for window, total in self._sums.items():
            if self._today - window < day <= self._today:
                total.subtract(counts)

    def _move(self, today: int) -> None:
        """Move the sums to another day: add the days that enter each window, then subtract the days that leave it."""
        if today == self._today:
            return
        for window, total in self._sums.items():
            before = range(self._today - window + 1, self._today + 1)
            after = range(today - window + 1, today + 1)
            for day in self.days:
                if day in after and day not in before:
                    total.add(self.days[day])
            for day in self.days:
                if day in before and day not in after:
                    total.subtract(self.days[day])
        self._today = today
