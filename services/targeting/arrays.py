"""Compact arrays of unsigned integers: 2 bytes an item while all items are below 65,536, then 4 bytes."""

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
from pyroaring import BitMap

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
