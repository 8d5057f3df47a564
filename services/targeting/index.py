"""Inverted indexes in compact arrays: a bitmap of devices for each value, the ids of values for each device.

The ids are needed to remove a device from the bitmaps of its old values: the log is compacted, so the record that set
those values may be gone when the next record is read.
"""

from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
from pyroaring import BitMap

# Compact arrays of unsigned integers: 2 bytes an item while all items are below 65,536, then 4 bytes.

if TYPE_CHECKING:
    Ints = array[int]
    Vector = np.ndarray[Any, np.dtype[Any]]
else:
    Ints = array
    Vector = np.ndarray

_LARGEST_2_BYTES = 0xFFFF


def ints(*items: int) -> Ints:
    """Return an array of items below 65,536."""
    return array("H", items)


def grown(items: Ints, length: int, largest: int = 0) -> Ints:
    """Return the array, or a wider copy that can hold `largest`, extended with zeros to at least `length` items."""
    if largest > _LARGEST_2_BYTES and items.itemsize == 2:
        items = array("I", items)
    if length > len(items):
        items.frombytes(bytes((length - len(items)) * items.itemsize))
    return items


def as_vector(items: Ints) -> Vector:
    """Return a writable vector over the array's memory; the array must not grow while the vector is alive."""
    return np.frombuffer(items, np.uint16 if items.itemsize == 2 else np.uint32)


def numbers_of(bitmap: BitMap) -> Vector:
    """Return the bitmap's numbers, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32)


def allocate_sets(lengths: Vector, largest: int) -> tuple[Vector, Ints]:
    """Return the start of each set of these lengths inside one array, and the array with only the lengths filled in.

    A set is stored as its length, at its start, followed by its items. The empty set starts at 0, where a 0 is stored.
    `largest` is the largest item that will be stored.
    """
    sizes = np.where(lengths > 0, lengths + 1, 0)
    starts = np.where(lengths > 0, np.cumsum(sizes) - sizes + 1, 0)
    items = grown(ints(), 1 + int(sizes.sum()), max(largest, int(lengths.max(initial=0))))
    as_vector(items)[starts] = lengths
    return starts, items


def compacted(starts: Ints, items: Ints) -> tuple[Ints, Ints]:
    """Return new starts and a new array that hold the same sets without unused items between them."""
    old_starts, old = as_vector(starts).astype(np.int64), as_vector(items)
    lengths = old[old_starts].astype(np.int64)
    new_starts, new = allocate_sets(lengths, int(old.max()))
    first = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(first, lengths) + 1
    as_vector(new)[np.repeat(new_starts, lengths) + within] = old[np.repeat(old_starts, lengths) + within]
    return array("I", new_starts.astype(np.uint32).tobytes()), new


Value = TypeVar("Value", bound=Hashable)

Counts: TypeAlias = dict[Value, int]
"""The number of devices that have a value, over several partitions; without the values that no device has."""


class ValueBitmaps(Generic[Value]):
    """The bitmap of each value, under a small id from 1 on. The id of a value without devices is reused.

    A bitmap that `find` returned never changes: the next change of its value replaces it by a copy. So a query can be
    evaluated in slices between which facts are applied, and still see one state.
    """

    def __init__(self) -> None:
        self._lent: set[int] = set()
        self._ids: dict[Value, int] = {}
        self._values: dict[int, Value] = {}
        self._bitmaps: list[BitMap] = [BitMap()]
        self._free: list[int] = []
        self._counts: Counts[Value] | None = None

    @property
    def is_counted(self) -> bool:
        return self._counts is not None

    def count_into(self, counts: Counts[Value]) -> None:
        """Add the devices of each value to `counts`, and keep `counts` up to date from now on."""
        for value, value_id in self._ids.items():
            counts[value] = counts.get(value, 0) + len(self._bitmaps[value_id])
        self._counts = counts

    def note_added(self, value_id: int) -> None:
        """Count a device that has got the value with this id; `discard` counts those that lose it."""
        if self._counts is not None:
            value = self._values[value_id]
            self._counts[value] = self._counts.get(value, 0) + 1

    def find(self, value: Value) -> BitMap | None:
        """Return the devices that have the value now, None if there are none. The caller must not change the bitmap."""
        value_id = self._ids.get(value)
        if value_id is None:
            return None
        self._lent.add(value_id)
        return self._bitmaps[value_id]

    def items(self) -> Iterator[tuple[Value, BitMap]]:
        return ((value, self._bitmaps[value_id]) for value, value_id in self._ids.items())

    def insert(self, value: Value, bitmap: BitMap) -> int:
        """Add a new value with its bitmap and return its id."""
        if self._free:
            value_id = self._free.pop()
            self._bitmaps[value_id] = bitmap
        else:
            value_id = len(self._bitmaps)
            self._bitmaps.append(bitmap)
        self._ids[value] = value_id
        self._values[value_id] = value
        return value_id

    def add(self, value: Value, number: int) -> int:
        """Add the device to the value's bitmap and return the value's id."""
        value_id = self._ids.get(value)
        if value_id is None:
            return self.insert(value, BitMap((number,)))
        if value_id in self._lent:
            self._replace_lent(value_id)
        self._bitmaps[value_id].add(number)
        return value_id

    def discard(self, value_id: int, number: int) -> None:
        """Remove the device from the bitmap of the value with this id."""
        if value_id in self._lent:
            self._replace_lent(value_id)
        bitmap = self._bitmaps[value_id]
        bitmap.discard(number)
        if self._counts is not None:
            self._note_removed(self._counts, self._values[value_id])
        if not bitmap:
            del self._ids[self._values.pop(value_id)]
            self._free.append(value_id)

    @staticmethod
    def _note_removed(counts: Counts[Value], value: Value) -> None:
        counts[value] -= 1
        if not counts[value]:
            del counts[value]

    def _replace_lent(self, value_id: int) -> None:
        self._lent.discard(value_id)
        self._bitmaps[value_id] = self._bitmaps[value_id].copy()


class SingleValueIndex(Generic[Value]):
    """The index of a field with at most one value a device: 2 bytes a device, 4 beyond 65,535 values."""

    def __init__(self) -> None:
        self.values: ValueBitmaps[Value] = ValueBitmaps()
        self._id_of_device = ints()

    def put(self, number: int, value: Value | None) -> None:
        """Replace the device's value; None removes it."""
        old = self._id_of_device[number] if number < len(self._id_of_device) else 0
        new = 0 if value is None else self.values.add(value, number)
        if new == old:
            return
        self._id_of_device = grown(self._id_of_device, number + 1, new)
        self._id_of_device[number] = new
        if new:
            self.values.note_added(new)
        if old:
            self.values.discard(old, number)

    def load(self, postings: Iterable[tuple[Value, BitMap]]) -> None:
        """Fill an empty index from the bitmaps of its values, none of them empty."""
        for value, bitmap in postings:
            value_id = self.values.insert(value, bitmap)
            self._id_of_device = grown(self._id_of_device, bitmap.max() + 1, value_id)
            as_vector(self._id_of_device)[numbers_of(bitmap)] = value_id

    def nbytes(self) -> int:
        """Return the memory of the ids, without the bitmaps."""
        return len(self._id_of_device) * self._id_of_device.itemsize


class MultiValueIndex(Generic[Value]):
    """The index of a field with any number of values a device: 4 bytes a device, 2 a value, and 2 if it has any.

    The ids of a device are stored as a set inside one long array (see `allocate_sets`). Replaced sets stay in it unused
    until they make up half of it.
    """

    def __init__(self) -> None:
        self.values: ValueBitmaps[Value] = ValueBitmaps()
        self._starts = array("I")
        self._ids = ints(0)
        self._unused = 0

    def put(self, number: int, values: Collection[Value]) -> None:
        """Replace the device's values."""
        old = self._ids_of(number)
        if not values and not old:
            return
        new = [self.values.add(value, number) for value in values]
        if new == old:
            return
        if self.values.is_counted:
            for value_id in set(new).difference(old):
                self.values.note_added(value_id)
        for value_id in set(old).difference(new):
            self.values.discard(value_id, number)
        self._store(number, new)
        self._unused += len(old) + 1 if old else 0
        if self._unused * 2 > len(self._ids) + 1024:
            self._set(*compacted(self._starts, self._ids))

    def load(self, postings: Iterable[tuple[Value, BitMap]]) -> None:
        """Fill an empty index from the bitmaps of its values, none of them empty."""
        inserted = [(self.values.insert(value, bitmap), bitmap) for value, bitmap in postings]
        if not inserted:
            return
        lengths = np.zeros(1 + max(bitmap.max() for _, bitmap in inserted), np.int64)
        for _, bitmap in inserted:
            lengths[numbers_of(bitmap)] += 1
        starts, ids = allocate_sets(lengths, len(inserted))
        next_free = starts + 1
        view = as_vector(ids)
        for value_id, bitmap in inserted:
            numbers = numbers_of(bitmap)
            view[next_free[numbers]] = value_id
            next_free[numbers] += 1
        self._set(array("I", starts.astype(np.uint32).tobytes()), ids)

    def nbytes(self) -> int:
        """Return the memory of the ids, without the bitmaps."""
        return sum(len(part) * part.itemsize for part in (self._starts, self._ids))

    def _ids_of(self, number: int) -> list[int]:
        start = self._starts[number] if number < len(self._starts) else 0
        if not start:
            return []
        return self._ids[start + 1 : start + 1 + self._ids[start]].tolist()

    def _store(self, number: int, ids: list[int]) -> None:
        self._starts = grown(self._starts, number + 1)
        self._starts[number] = len(self._ids) if ids else 0
        if ids:
            self._ids = grown(self._ids, 0, max(len(ids), *ids))
            self._ids.append(len(ids))
            self._ids.extend(ids)

    def _set(self, starts: Ints, ids: Ints) -> None:
        self._starts, self._ids, self._unused = starts, ids, 0
