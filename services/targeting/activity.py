"""App opens by device and hour as bit-sliced counters, and their sums over rolling windows.

A window of N days at a time T has the opens of whole hours of the UTC clock, from the one in which T - N * 24 h lies.
So an open counts for N * 24 h at least, and for less than an hour longer.
"""

from array import array
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from pyroaring import BitMap

from services.domain.device_numbers import MAX_NUMBER
from services.targeting.index import Vector, numbers_of

# Bit-sliced counters: sums and comparisons of the counts of many numbers take a few bitmap operations.


class BitSlicedCounts:
    """A count for each number. Slice k holds the numbers whose count has bit k set; the last slice is never empty.

    Equal counts have equal slices, whatever the order of counting. A number with count 0 takes no memory.
    """

    __slots__ = ("slices",)

    def __init__(self, slices: Sequence[BitMap] = ()) -> None:
        self.slices = list(slices)

    @classmethod
    def of(cls, counts: Vector) -> "BitSlicedCounts":
        """Return the counts of an array, in which a number's count is at its place."""
        length = int(counts.max(initial=0)).bit_length()
        return cls([_numbers_with_bit(counts, bit) for bit in range(length)])

    def increment(self, number: int) -> None:
        """Add 1 to the number's count."""
        for part in self.slices:
            if number not in part:
                part.add(number)
                return
            part.discard(number)
        self.slices.append(BitMap((number,)))

    def add(self, other: "BitSlicedCounts") -> None:
        """Add the other's counts, bit by bit with a carry."""
        carry = BitMap()
        for bit, own, others in self._slice_pairs(other):
            if not others and not carry and bit >= len(other.slices):
                return
            changed = own ^ others
            self.slices[bit] = changed ^ carry
            carry = (own & others) | (changed & carry)
        if carry:
            self.slices.append(carry)

    def subtract(self, other: "BitSlicedCounts") -> None:
        """Subtract the other sum's counts; none of them may exceed this sum's."""
        borrow = BitMap()
        for bit, own, others in self._slice_pairs(other):
            if not borrow and bit >= len(other.slices):
                break
            changed = own ^ others
            self.slices[bit] = changed ^ borrow
            borrow = (others - own) | (borrow - changed)
        while self.slices and not self.slices[-1]:
            self.slices.pop()

    def at_least(self, least: int) -> BitMap:
        """Return the numbers with a count of `least` (1 or more) or greater."""
        bound = least - 1
        if not self.slices or bound.bit_length() > len(self.slices):
            return BitMap()
        above, equal = BitMap(), BitMap.union(*self.slices)
        for bit in reversed(range(len(self.slices))):
            if bound >> bit & 1:
                equal &= self.slices[bit]
            else:
                above |= equal & self.slices[bit]
                equal -= self.slices[bit]
        return above

    def _slice_pairs(self, other: "BitSlicedCounts") -> Iterator[tuple[int, BitMap, BitMap]]:
        while len(self.slices) < len(other.slices):
            self.slices.append(BitMap())
        for bit in range(len(self.slices)):
            others = other.slices[bit] if bit < len(other.slices) else BitMap()
            yield bit, self.slices[bit], others


def _numbers_with_bit(counts: Vector, bit: int) -> BitMap:
    numbers = np.flatnonzero(counts >> np.uint32(bit) & np.uint32(1))
    return BitMap(array("I", numbers.astype(np.uint32).tobytes()))


WINDOWS = (1, 7, 30, 90)
"""The windows that filters can name: the last N times 24 hours."""

_HOUR_MS = 3_600_000
_HOURS = 24

_STORED_DAYS = max(WINDOWS) + 9
"""Days that are kept: the longest window touches 91, one more is tomorrow, for a gateway's clock that is slightly
ahead, and seven are days that a wrong clock named."""

HOUR_SHIFT = MAX_NUMBER.bit_length() - 1
"""An open is counted at hour of the day << HOUR_SHIFT | device number."""

_NUMBER = np.uint32(MAX_NUMBER - 1)

_MOVED_HOURS = 48
"""Hours by which a sum is moved at most; beyond that, counting it anew takes about as long."""

_OPENS_AN_OPERATION = 1000
_OPERATIONS_PER_STEP = 30


def hour_of(time_ms: int) -> int:
    """Return the hour of the UTC clock at a time in ms since 1970 UTC, counted from then."""
    return time_ms // _HOUR_MS


def hours_of(window: int, hour: int) -> range:
    """Return the hours whose opens count in a window of `window` days that ends in `hour`.

    The first is the hour in which the window begins, so nothing within it is missed. The last is the hour after
    `hour`, because the clock of the gateway that named an open's time may be ahead.
    """
    return range(hour - window * _HOURS, hour + 2)


class _Sum:
    """The opens of each device in the hours from `first` until before `end`.

    While the hours of the whole window are first added, their opens are in `array`, at the device's number, and
    `counts` has those that were reported meanwhile.
    """

    __slots__ = ("array", "counts", "end", "first")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self.counts = BitSlicedCounts()
        self.array: Vector | None = np.zeros(0, np.uint32)

    def can_move_to(self, hours: range) -> bool:
        return 0 <= hours.start - self.first <= _MOVED_HOURS and self.end <= hours.stop


class AppOpens:
    """The app opens of one app in one partition by hour, for the 99 latest of the UTC days that had any.

    The opens of a day are counted by hour and device (HOUR_SHIFT), in a bitmap for each bit of the counts: it takes
    at most 2 bytes for each device that opened the app in an hour.

    The stored days depend on the events alone and not on when or in which order they are folded, so a replay ends in
    the same state. A day that a wrong clock named takes the place of one day, the earliest, and of no other; its opens
    count when their hours come. The sum of a window is computed at the first query and then moved along with the hours.
    """

    def __init__(self, days: dict[int, BitSlicedCounts] | None = None) -> None:
        self.days = days or {}
        self._sums: dict[int, _Sum] = {}

    def add(self, number: int, hour: int) -> None:
        """Count one open of the device in the hour, unless 99 later days are stored."""
        day, hour_of_day = divmod(hour, _HOURS)
        counts = self.days.get(day)
        if counts is None:
            if len(self.days) == _STORED_DAYS:
                if day < (earliest := min(self.days)):
                    return
                self._delete(earliest)
            counts = self.days[day] = BitSlicedCounts()
        counts.increment(hour_of_day << HOUR_SHIFT | number)
        for total in self._sums.values():
            if total.first <= hour < total.end:
                total.counts.increment(number)

    def at_least(self, opens: int, window: int, hour: int) -> BitMap:
        """Return the devices that opened the app `opens` times (1 or more) in the `window` days up to the hour."""
        while self.move((window,), hour):
            pass
        return self._sums[window].counts.at_least(opens)

    def move(self, windows: Collection[int], hour: int) -> int:
        """Move the sums of the windows one step towards the hour; return its bitmap operations, 0 if none was needed.

        A step adds or subtracts the opens of at most a day. Opens may be reported between two steps.
        """
        for window in windows:
            hours = hours_of(window, hour)
            total = self._sums.get(window)
            if total is None or not total.can_move_to(hours):
                total = self._sums[window] = _Sum(hours.start)
            if total.end < hours.stop:
                return self._grow(total, hours.stop)
            if total.first < hours.start:
                return self._shrink(total, hours.start)
        return 0

    def _grow(self, total: _Sum, stop: int) -> int:
        """Add the opens of the hours behind the sum until the day ends; once it has all, its array becomes counts."""
        first, total.end = total.end, min(stop, _next_day(total.end))
        array, opens = self._opened(first, total.end, total.array)
        if total.array is not None and total.end < stop:
            total.array = array
        else:
            total.array = None
            total.counts.add(BitSlicedCounts.of(array))
        return _operations(opens)

    def _shrink(self, total: _Sum, start: int) -> int:
        """Subtract the opens of the sum's first hours until their day ends."""
        first, total.first = total.first, min(start, _next_day(total.first))
        array, opens = self._opened(first, total.first)
        total.counts.subtract(BitSlicedCounts.of(array))
        return _operations(opens)

    def _opened(self, first: int, end: int, array: Vector | None = None) -> tuple[Vector, int]:
        """Add one day's opens in the hours to an array of counts by number, or a longer copy; return it and how many"""
        if array is None:
            array = np.zeros(0, np.uint32)
        day, opens = first // _HOURS, 0
        borders = np.array([hour - day * _HOURS << HOUR_SHIFT for hour in (first, end)], np.uint32)
        for bit, part in enumerate(self.days[day].slices if day in self.days else ()):
            entries = numbers_of(part)
            low, high = entries.searchsorted(borders)
            if low < high:
                numbers = entries[low:high] & _NUMBER
                if (missing := int(numbers.max()) + 1 - len(array)) > 0:
                    array = np.pad(array, (0, missing))
                np.add.at(array, numbers, np.uint32(1 << bit))
                opens += len(numbers)
        return array, opens

    def _delete(self, day: int) -> None:
        """Forget a day. A sum that has some of its hours is counted anew at the next query."""
        del self.days[day]
        for window, total in list(self._sums.items()):
            if total.first < (day + 1) * _HOURS and day * _HOURS < total.end:
                del self._sums[window]


def _next_day(hour: int) -> int:
    return (hour // _HOURS + 1) * _HOURS


def _operations(opens: int) -> int:
    return _OPERATIONS_PER_STEP + opens // _OPENS_AN_OPERATION if opens else 1
