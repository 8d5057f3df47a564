"""A push's audience in one partition, and who is done with it: a bitmap for many, a list for few."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from pyroaring import BitMap

from protos.push.v1.push_pb2 import SendPush

Targets = dict[int, list[int]]
"""Device number -> message ids."""


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

    def settle(self, msgid: int, numbers: Iterable[int]) -> None:
        """These devices are done with the message."""
        self.settled |= BitMap(numbers) & self.audience

    def dump(self) -> bytes:
        return msgspec.msgpack.encode((_packed(self.audience), _packed(self.settled)))

    @classmethod
    def load(cls, msgid: int, blob: bytes) -> "BitmapPart":
        audience, settled = msgspec.msgpack.decode(blob, type=tuple[bytes, bytes])
        return cls(msgid, BitMap.deserialize(audience), BitMap.deserialize(settled))


@dataclass(slots=True)
class ListedPart:
    """Named devices; in a token list each entry has its own message id. Only what is pending is kept."""

    targets: Targets

    @property
    def done(self) -> bool:
        return not self.targets

    def pending_ids(self, number: int) -> list[int]:
        return list(self.targets.get(number, ()))

    def pending_numbers(self) -> BitMap:
        return BitMap(self.targets)

    def settle(self, msgid: int, numbers: Iterable[int]) -> None:
        for number in numbers:
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


def listed_targets(send: SendPush) -> dict[int, Targets]:
    """The targets of a push that lists its devices, by partition; the same one twice counts once.

    ValueError: its columns do not fit together.
    """
    devices = send.audience.devices
    count = len(devices.partitions) // 2
    try:
        partitions = struct.unpack(f"<{count}H", devices.partitions)
        numbers = struct.unpack(f"<{count}I", devices.numbers)
        offsets = struct.unpack(f"<{count}I", devices.id_offsets)
    except struct.error as error:
        raise ValueError(f"the devices of push {send.msgid} are columns of unequal length") from error
    targets: dict[int, Targets] = {}
    for partition, number, offset in dict.fromkeys(zip(partitions, numbers, offsets, strict=True)):
        targets.setdefault(partition, {}).setdefault(number, []).append(send.msgid + offset)
    return targets


def _packed(bitmap: BitMap) -> bytes:
    """The smallest form, which is the same for all equal bitmaps."""
    copy = bitmap.copy()
    copy.run_optimize()
    return copy.serialize()
