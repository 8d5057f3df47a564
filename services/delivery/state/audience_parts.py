"""The audience of a push in one partition, and which of its devices have a final outcome."""

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
from pyroaring import BitMap

from protos.push.v1.push_pb2 import SendPush

_FEW = 32
"""Listed devices up to which a loop is faster than arrays."""

Targets = dict[int, list[int]]
"""Message ids by device number."""


@dataclass(slots=True)
class BitmapAudience:
    """The audience of a broadcast or multicast in one partition; all devices share one message id.

    `concluded` holds the devices that have a final outcome.
    """

    msgid: int
    devices: BitMap
    concluded: BitMap

    @property
    def is_concluded(self) -> bool:
        """Whether every device has a final outcome."""
        return len(self.concluded) >= len(self.devices)

    def pending_msgids(self, number: int) -> list[int]:
        """Return the message ids for which the device has no final outcome."""
        return [self.msgid] if number in self.devices and number not in self.concluded else []

    def pending_numbers(self) -> BitMap:
        """Return the devices without a final outcome."""
        return self.devices - self.concluded

    def conclude(self, msgid: int, numbers: Iterable[int]) -> None:
        """Note that these devices have a final outcome; numbers outside of the audience are ignored."""
        self.concluded |= BitMap(numbers) & self.devices

    def dump(self) -> bytes:
        return msgspec.msgpack.encode((packed(self.devices), packed(self.concluded)))

    @classmethod
    def load(cls, msgid: int, blob: bytes) -> "BitmapAudience":
        devices, concluded = msgspec.msgpack.decode(blob, type=tuple[bytes, bytes])
        return cls(msgid, BitMap.deserialize(devices), BitMap.deserialize(concluded))


@dataclass(slots=True)
class ListedAudience:
    """The listed devices of a unicast in one partition; each entry of a token list has its own message id.

    `targets` holds pending messages only: an entry is removed once it has a final outcome.
    """

    targets: Targets

    @property
    def is_concluded(self) -> bool:
        """Whether every device has a final outcome."""
        return not self.targets

    def pending_msgids(self, number: int) -> list[int]:
        """Return the message ids for which the device has no final outcome."""
        return list(self.targets.get(number, ()))

    def pending_numbers(self) -> BitMap:
        """Return the devices without a final outcome."""
        return BitMap(self.targets)

    def conclude(self, msgid: int, numbers: Iterable[int]) -> None:
        """Remove the entries of these devices with this message id, where there are any."""
        for number in numbers:
            msgids = self.targets.get(number)
            if msgids and msgid in msgids:
                msgids.remove(msgid)
                if not msgids:
                    del self.targets[number]

    def dump(self) -> bytes:
        return msgspec.msgpack.encode(sorted(self.targets.items()))

    @classmethod
    def load(cls, blob: bytes) -> "ListedAudience":
        return cls(dict(msgspec.msgpack.decode(blob, type=list[tuple[int, list[int]]])))


AudiencePart = BitmapAudience | ListedAudience


def listed_targets(send: SendPush, wanted: Collection[int] | None = None) -> dict[int, Targets]:
    """Return the targets of a push to listed devices by partition, of all or of the wanted partitions.

    Repeated entries count once. ValueError: the columns have different lengths.
    """
    devices = send.audience.devices
    partitions, numbers, offsets = devices.partitions, devices.numbers, devices.id_offsets
    count = len(partitions) // 2
    if (len(partitions), len(numbers), len(offsets)) != (2 * count, 4 * count, 4 * count):
        raise ValueError(f"the devices of push {send.msgid} are columns of unequal length")
    if wanted is not None and count > _FEW:
        partitions, numbers, offsets = _chosen(partitions, numbers, offsets, wanted)
        count = len(partitions) // 2
    rows = zip(
        struct.unpack(f"<{count}H", partitions),
        struct.unpack(f"<{count}I", numbers),
        struct.unpack(f"<{count}I", offsets),
        strict=True,
    )
    targets: dict[int, Targets] = {}
    for partition, number, offset in dict.fromkeys(rows):
        if wanted is None or partition in wanted:
            targets.setdefault(partition, {}).setdefault(number, []).append(send.msgid + offset)
    return targets


def _chosen(partitions: bytes, numbers: bytes, offsets: bytes, wanted: Collection[int]) -> tuple[bytes, bytes, bytes]:
    """Return the rows of the wanted partitions, so that an instance makes Python objects of its own part only."""
    chosen = np.isin(np.frombuffer(partitions, "<u2"), list(wanted))
    return (
        np.frombuffer(partitions, "<u2")[chosen].tobytes(),
        np.frombuffer(numbers, "<u4")[chosen].tobytes(),
        np.frombuffer(offsets, "<u4")[chosen].tobytes(),
    )


def packed(bitmap: BitMap) -> bytes:
    """Serialize a bitmap in its smallest form, which is the same for all equal bitmaps.

    Where runs and an array take the same space, the library keeps the form that a bitmap had before: so one with runs
    is built anew.
    """
    copy = bitmap.copy()
    copy.run_optimize()
    if copy.get_statistics()["n_run_containers"]:
        copy = BitMap(copy.to_array())
        copy.run_optimize()
    return copy.serialize()
