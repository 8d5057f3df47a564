"""Compact arrays of small unsigned integers: 2 bytes an item while all are below 65,536, then 4."""

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

_LARGEST_NARROW = 0xFFFF


def ints(*items: int) -> Ints:
    """An array of items below 65,536."""
    return array("H", items)


def roomy(items: Ints, length: int, largest: int = 0) -> Ints:
    """The array, or a wider copy that can hold `largest`, grown with zeros to the length at least."""
    if largest > _LARGEST_NARROW and items.itemsize == 2:
        items = array("I", items)
    if length > len(items):
        items.frombytes(bytes((length - len(items)) * items.itemsize))
    return items


def writable(items: Ints) -> Vector:
    """The array's memory as a vector; the array must not grow while the vector is alive."""
    return np.frombuffer(items, np.uint16 if items.itemsize == 2 else np.uint32)


def numbers_of(bitmap: BitMap) -> Vector:
    """The bitmap's numbers, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32)


def arena(lengths: Vector, largest: int) -> tuple[Vector, Ints]:
    """Where sets of these lengths start in one array, and that array with nothing but their lengths in it.

    An empty set starts at 0, where a 0 stands. `largest` is the largest item that will be put in.
    """
    taken = np.where(lengths > 0, lengths + 1, 0)
    starts = np.where(lengths > 0, np.cumsum(taken) - taken + 1, 0)
    items = roomy(ints(), 1 + int(taken.sum()), max(largest, int(lengths.max(initial=0))))
    writable(items)[starts] = lengths
    return starts, items


def compacted(starts: Ints, items: Ints) -> tuple[Ints, Ints]:
    """The same sets at other starts, without what is between them."""
    old_starts, old = writable(starts).astype(np.int64), writable(items)
    lengths = old[old_starts].astype(np.int64)
    new_starts, new = arena(lengths, int(old.max()))
    first = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(first, lengths) + 1
    writable(new)[np.repeat(new_starts, lengths) + within] = old[np.repeat(old_starts, lengths) + within]
    return array("I", new_starts.astype(np.uint32).tobytes()), new
