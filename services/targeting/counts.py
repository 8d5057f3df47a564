"""How often each number was counted, in bit slices: sums and comparisons are a few bitmap operations."""

from collections.abc import Iterator, Sequence

from pyroaring import BitMap


class Counts:
    """Slice k holds the numbers whose count has bit k set; the last slice is never empty.

    Equal counts have equal slices, whatever the order of counting. A number that was never counted takes no memory.
    """

    __slots__ = ("slices",)

    def __init__(self, slices: Sequence[BitMap] = ()) -> None:
        self.slices = list(slices)

    def add(self, number: int) -> None:
        """Count the number once more."""
        for part in self.slices:
            if number not in part:
                part.add(number)
                return
            part.discard(number)
        self.slices.append(BitMap((number,)))

    def plus(self, other: "Counts") -> None:
        """Add the other's counts, bit by bit with a carry."""
        carry = BitMap()
        for place, mine, theirs in self._beside(other):
            if not theirs and not carry and place >= len(other.slices):
                return
            changed = mine ^ theirs
            self.slices[place] = changed ^ carry
            carry = (mine & theirs) | (changed & carry)
        if carry:
            self.slices.append(carry)

    def minus(self, other: "Counts") -> None:
        """Take the other's counts away, each at most as great as the own one."""
        borrow = BitMap()
        for place, mine, theirs in self._beside(other):
            if not borrow and place >= len(other.slices):
                break
            changed = mine ^ theirs
            self.slices[place] = changed ^ borrow
            borrow = (theirs - mine) | (borrow - changed)
        while self.slices and not self.slices[-1]:
            self.slices.pop()

    def at_least(self, least: int) -> BitMap:
        """The numbers counted `least` times or more; `least` is 1 or greater."""
        bound = least - 1
        if not self.slices or bound.bit_length() > len(self.slices):
            return BitMap()
        above, equal = BitMap(), BitMap.union(*self.slices)
        for place in reversed(range(len(self.slices))):
            if bound >> place & 1:
                equal &= self.slices[place]
            else:
                above |= equal & self.slices[place]
                equal -= self.slices[place]
        return above

    def _beside(self, other: "Counts") -> Iterator[tuple[int, BitMap, BitMap]]:
        while len(self.slices) < len(other.slices):
            self.slices.append(BitMap())
        for place in range(len(self.slices)):
            theirs = other.slices[place] if place < len(other.slices) else BitMap()
            yield place, self.slices[place], theirs
