"""Which device keys are refused: numbers of one app and partition."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import Revocations

REVOKED = "revoked"
"""How the reason begins for which a device was removed whose key was revoked."""


@dataclass(frozen=True, slots=True)
class RevokedKeys:
    """All numbers below `below`, and some from there on. Device numbers are given out once, so they stay revoked."""

    below: int = 0
    others: BitMap = field(default_factory=BitMap)

    @classmethod
    def of(cls, record: Revocations) -> "RevokedKeys":
        """ValueError: its numbers are no bitmap."""
        return cls(record.below, BitMap.deserialize(record.numbers) if record.numbers else BitMap())

    def __contains__(self, number: int) -> bool:
        return number < self.below or number in self.others

    def __iter__(self) -> Iterator[int]:
        yield from range(self.below)
        yield from self.others


NONE_REVOKED = RevokedKeys()


def revocations_key(record: Revocations) -> bytes:
    """The key of the record in topic `apps`: one for each partition, written by the instance that owns it."""
    return f"{record.appkey}/revoked/{record.partition}".encode()
