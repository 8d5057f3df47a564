"""From values to devices and back: a bitmap of devices for each value, and for each device the small ids of its values.

The way back is needed to take a device out of the bitmaps of its old values: the log is compacted, so the record that
gave it those values may be gone when the next one is read.
"""

from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np
from pyroaring import BitMap

from services.targeting.arrays import Ints, arena, compacted, ints, numbers_of, roomy, writable

Value = TypeVar("Value", bound=Hashable)


class Values(Generic[Value]):
    """The bitmap of each value, under a small id from 1 on; the id of a value that no device has is used again."""

    def __init__(self) -> None:
        self._ids: dict[Value, int] = {}
        self._values: dict[int, Value] = {}
        self._bitmaps: list[BitMap] = [BitMap()]
        self._free: list[int] = []

    def find(self, value: Value) -> BitMap | None:
        """The devices with the value, None for none; not to be changed."""
        place = self._ids.get(value)
        return None if place is None else self._bitmaps[place]

    def items(self) -> Iterator[tuple[Value, BitMap]]:
        return ((value, self._bitmaps[place]) for value, place in self._ids.items())

    def take(self, value: Value, bitmap: BitMap) -> int:
        """Give a new value its bitmap; returns the id."""
        if self._free:
            place = self._free.pop()
            self._bitmaps[place] = bitmap
        else:
            place = len(self._bitmaps)
            self._bitmaps.append(bitmap)
        self._ids[value] = place
        self._values[place] = value
        return place

    def add(self, value: Value, number: int) -> int:
        """Note that the device has the value; returns the id."""
        place = self._ids.get(value)
        if place is None:
            return self.take(value, BitMap((number,)))
        self._bitmaps[place].add(number)
        return place

    def discard(self, place: int, number: int) -> None:
        """Note that the device no longer has the value with this id."""
        bitmap = self._bitmaps[place]
        bitmap.discard(number)
        if not bitmap:
            del self._ids[self._values.pop(place)]
            self._free.append(place)


class Column(Generic[Value]):
    """A field with at most one value a device: 2 bytes a device, 4 beyond 65,535 values."""

    def __init__(self) -> None:
        self.values: Values[Value] = Values()
        self._places = ints()

    def put(self, number: int, value: Value | None) -> None:
        """Replace the device's value; None for none."""
        old = self._places[number] if number < len(self._places) else 0
        place = 0 if value is None else self.values.add(value, number)
        if place == old:
            return
        self._places = roomy(self._places, number + 1, place)
        self._places[number] = place
        if old:
            self.values.discard(old, number)

    def load(self, postings: Iterable[tuple[Value, BitMap]]) -> None:
        """Fill an empty column from the bitmaps of its values, none of them empty."""
        for value, bitmap in postings:
            place = self.values.take(value, bitmap)
            self._places = roomy(self._places, bitmap.max() + 1, place)
            writable(self._places)[numbers_of(bitmap)] = place

    def nbytes(self) -> int:
        """Bytes of the way from devices to values."""
        return len(self._places) * self._places.itemsize


class SetColumn(Generic[Value]):
    """A field with any number of values a device: 4 bytes a device, 2 a value it has, and 2 if it has any.

    The ids of one device stand behind their count somewhere in one long array. Ids that were replaced stay there as
    waste until they are half of it.
    """

    def __init__(self) -> None:
        self.values: Values[Value] = Values()
        self._starts = array("I")
        self._places = ints(0)
        self._waste = 0

    def put(self, number: int, values: Collection[Value]) -> None:
        """Replace the device's values."""
        old = self._of(number)
        new = [self.values.add(value, number) for value in values]
        if new == old:
            return
        for place in set(old).difference(new):
            self.values.discard(place, number)
        self._store(number, new)
        self._waste += len(old) + 1 if old else 0
        if self._waste * 2 > len(self._places) + 1024:
            self._set(*compacted(self._starts, self._places))

    def load(self, postings: Iterable[tuple[Value, BitMap]]) -> None:
        """Fill an empty column from the bitmaps of its values, none of them empty."""
        places = [(self.values.take(value, bitmap), bitmap) for value, bitmap in postings]
        if not places:
            return
        lengths = np.zeros(1 + max(bitmap.max() for _, bitmap in places), np.int64)
        for _, bitmap in places:
            lengths[numbers_of(bitmap)] += 1
        starts, filled = arena(lengths, len(places))
        free = starts + 1
        view = writable(filled)
        for place, bitmap in places:
            numbers = numbers_of(bitmap)
            view[free[numbers]] = place
            free[numbers] += 1
        self._set(array("I", starts.astype(np.uint32).tobytes()), filled)

    def nbytes(self) -> int:
        """Bytes of the way from devices to values."""
        return sum(len(part) * part.itemsize for part in (self._starts, self._places))

    def _of(self, number: int) -> list[int]:
        start = self._starts[number] if number < len(self._starts) else 0
        return self._places[start + 1 : start + 1 + self._places[start]].tolist()

    def _store(self, number: int, places: list[int]) -> None:
        self._starts = roomy(self._starts, number + 1)
        self._starts[number] = len(self._places) if places else 0
        if places:
            self._places = roomy(self._places, 0, max(len(places), *places))
            self._places.append(len(places))
            self._places.extend(places)

    def _set(self, starts: Ints, places: Ints) -> None:
        self._starts, self._places, self._waste = starts, places, 0
