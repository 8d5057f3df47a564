"""Bit-sliced counters: sums and comparisons of the counts of many numbers take a few bitmap operations."""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from pyroaring import BitMap

from services.targeting.arrays import Vector


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
        """Subtract the other's counts, none of which may exceed the own count."""
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
