"""Revoked device keys of one app and partition, by device number."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import Revocations

REVOKED = "revoked"
"""Prefix of the removal reason of devices whose key was revoked."""


@dataclass(frozen=True, slots=True)
class RevokedKeys:
    """The devices with revoked keys: all numbers below `below`, and `others`. Numbers are never reused, so keys stay
    revoked."""

    below: int = 0
    others: BitMap = field(default_factory=BitMap)

    @classmethod
    def of(cls, record: Revocations) -> "RevokedKeys":
        """Decode a record. ValueError: its numbers are no bitmap."""
        return cls(record.below, BitMap.deserialize(record.numbers) if record.numbers else BitMap())

    def __contains__(self, number: int) -> bool:
        return number < self.below or number in self.others

    def __iter__(self) -> Iterator[int]:
        yield from range(self.below)
        yield from self.others


NONE_REVOKED = RevokedKeys()


def revocations_key(record: Revocations) -> bytes:
    """Return the record's key in topic `apps`: one for each partition, written by the instance that owns it."""
    return f"{record.appkey}/revoked/{record.partition}".encode()
