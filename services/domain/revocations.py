"""Revoked device keys of one app and partition, by device number."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import Revocations


@dataclass(frozen=True, slots=True)
class RevokedKeys:
    """Revoked device numbers: all below `below`, and `others`. Numbers are never reused, so keys stay revoked.

    A number may be revoked before a device has it: no device gets it then. `lost` are those of `others` that were
    reserved because the log may have given them out before it went back: the token of such a key may register again.
    """

    below: int = 0
    others: BitMap = field(default_factory=BitMap)
    lost: BitMap = field(default_factory=BitMap)

    @classmethod
    def of(cls, record: Revocations) -> "RevokedKeys":
        """Decode a record. ValueError: its numbers are no bitmap."""
        return cls(record.below, _bitmap(record.numbers), _bitmap(record.lost))

    def __or__(self, other: "RevokedKeys") -> "RevokedKeys":
        below, others, lost = max(self.below, other.below), self.others | other.others, self.lost | other.lost
        others.remove_range(0, below)
        lost.remove_range(0, below)
        return RevokedKeys(below, others, lost)

    def __contains__(self, number: int) -> bool:
        return number < self.below or number in self.others

    @property
    def end(self) -> int:
        """The number after the last one that is revoked."""
        return max(self.below, self.others.max() + 1 if self.others else 0)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last number of each run of consecutive numbers in `others`."""
        first = last = -2
        for number in self.others:
            if number != last + 1:
                if last >= 0:
                    yield first, last
                first = number
            last = number
        if last >= 0:
            yield first, last


def _bitmap(serialized: bytes) -> BitMap:
    return BitMap.deserialize(serialized) if serialized else BitMap()


NONE_REVOKED = RevokedKeys()


def revocations_key(record: Revocations) -> bytes:
    """Return the record's key in topic `apps`: one for each partition, written by the instance that owns it."""
    return f"{record.appkey}/revoked/{record.partition}".encode()
