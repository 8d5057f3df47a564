"""A push's audience in one partition, and who is done with it: a bitmap for many, a list for few."""

from dataclasses import dataclass

import msgspec
import numpy
from numpy.typing import NDArray
from pyroaring import BitMap


@dataclass(slots=True)
class BitmapPart:
    """Everyone shares one message id."""

    msgid: int
    audience: BitMap
    settled: BitMap

    @property
    def done(self) -> bool:
        return len(self.settled) >= len(self.audience)

    def pending_ids(self, number: int) -> list[int]:
        """What the device has still to get."""
        return [self.msgid] if number in self.audience and number not in self.settled else []

    def pending_numbers(self) -> BitMap:
        return self.audience - self.settled

    def addresses(self, number: int) -> bool:
        """Whether the device may have got the message."""
        return number in self.audience

    def settle(self, msgid: int, numbers: NDArray[numpy.uint32]) -> None:
        """These devices are done with the message."""
        self.settled |= BitMap(numbers) & self.audience

    def dump(self) -> bytes:
        return msgspec.msgpack.encode((self.audience.serialize(), self.settled.serialize()))

    @classmethod
    def load(cls, msgid: int, blob: bytes) -> "BitmapPart":
        audience, settled = msgspec.msgpack.decode(blob, type=tuple[bytes, bytes])
        return cls(msgid, BitMap.deserialize(audience), BitMap.deserialize(settled))


@dataclass(slots=True)
class ListedPart:
    """Named devices; in a token list each entry has its own message id. Only what is pending is kept."""

    targets: dict[int, list[int]]

    @property
    def done(self) -> bool:
        return not self.targets

    def pending_ids(self, number: int) -> list[int]:
        return list(self.targets.get(number, ()))

    def pending_numbers(self) -> BitMap:
        return BitMap(self.targets)

    def addresses(self, number: int) -> bool:
        """Unknown for devices that are done; they are believed."""
        return True

    def settle(self, msgid: int, numbers: NDArray[numpy.uint32]) -> None:
        for number in numbers.tolist():
            ids = self.targets.get(number)
            if ids and msgid in ids:
                ids.remove(msgid)
                if not ids:
                    del self.targets[number]

    def dump(self) -> bytes:
        return msgspec.msgpack.encode(sorted(self.targets.items()))

    @classmethod
    def load(cls, blob: bytes) -> "ListedPart":
        return cls(dict(msgspec.msgpack.decode(blob, type=list[tuple[int, list[int]]])))


Part = BitmapPart | ListedPart
