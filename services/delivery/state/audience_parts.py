"""The audience of a push in one partition, and which of its devices have a final outcome."""

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

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

    def pending_by_msgid(self, numbers: BitMap) -> dict[int, BitMap]:
        """Return those of the devices that have no final outcome, by message id."""
        return {self.msgid: self.pending_of(self.msgid, numbers)}

    def pending_of(self, msgid: int, numbers: BitMap) -> BitMap:
        """Return those of the devices that have no final outcome for this message id."""
        return (numbers & self.devices) - self.concluded

    def conclude(self, msgid: int, numbers: Iterable[int]) -> None:
        """Note that these devices have a final outcome; numbers outside of the audience are ignored."""
        self.concluded |= BitMap(numbers) & self.devices

    def awaits_acknowledgement(self, number: int, msgid: int) -> bool:
        """Whether an acknowledgement of the message by the device counts."""
        return msgid in self.pending_msgids(number)

    def dump(self) -> bytes:
        return msgspec.msgpack.encode((packed(self.devices), packed(self.concluded)))

    @classmethod
    def load(cls, msgid: int, blob: bytes) -> "BitmapAudience":
        devices, concluded = msgspec.msgpack.decode(blob, type=tuple[bytes, bytes])
        return cls(msgid, BitMap.deserialize(devices), BitMap.deserialize(concluded))


@dataclass(slots=True)
class ListedAudience:
    """The listed devices of a unicast in one partition; each entry of a token list has its own message id.

    `targets` holds pending messages only: an entry is removed once it has a final outcome. `withdrawn` holds those that
    were dropped because the device changed its alias: they are not sent any more, but some may be on their way, so an
    acknowledgement of them counts.
    """

    targets: Targets
    withdrawn: Targets | None = None

    @property
    def is_concluded(self) -> bool:
        """Whether nothing more can happen to a message: each has a final outcome, and none is withdrawn."""
        return not self.targets and not self.withdrawn

    def pending_msgids(self, number: int) -> list[int]:
        """Return the message ids for which the device has no final outcome."""
        return list(self.targets.get(number, ()))

    def pending_numbers(self) -> BitMap:
        """Return the devices without a final outcome."""
        return BitMap(self.targets)

    def pending_by_msgid(self, numbers: BitMap) -> dict[int, BitMap]:
        """Return those of the devices that have no final outcome, by message id."""
        found: dict[int, BitMap] = {}
        for number in numbers:
            for msgid in self.targets.get(number, ()):
                found.setdefault(msgid, BitMap()).add(number)
        return found

    def pending_of(self, msgid: int, numbers: BitMap) -> BitMap:
        """Return those of the devices that have no final outcome for this message id."""
        return BitMap(number for number in numbers if msgid in self.targets.get(number, ()))

    def conclude(self, msgid: int, numbers: Iterable[int]) -> None:
        """Remove the entries of these devices with this message id, where there are any."""
        for number in numbers:
            if not _remove(self.targets, number, msgid) and self.withdrawn:
                _remove(self.withdrawn, number, msgid)

    def withdraw(self, msgid: int, numbers: Iterable[int]) -> None:
        """Note that these devices are not sent the message any more, where it is pending for them."""
        self.withdrawn = self.withdrawn or {}
        for number in numbers:
            if _remove(self.targets, number, msgid):
                self.withdrawn.setdefault(number, []).append(msgid)

    def awaits_acknowledgement(self, number: int, msgid: int) -> bool:
        """Whether an acknowledgement of the message by the device counts."""
        return msgid in self.targets.get(number, ()) or msgid in (self.withdrawn or {}).get(number, ())

    def dump(self) -> bytes:
        return msgspec.msgpack.encode(sorted(self.targets.items()))

    @classmethod
    def load(cls, blob: bytes) -> "ListedAudience":
        return cls(dict(msgspec.msgpack.decode(blob, type=list[tuple[int, list[int]]])))


AudiencePart = BitmapAudience | ListedAudience


def _remove(targets: Targets, number: int, msgid: int) -> bool:
    """Remove an entry; return whether it was there."""
    msgids = targets.get(number)
    if not msgids or msgid not in msgids:
        return False
    msgids.remove(msgid)
    if not msgids:
        del targets[number]
    return True


def listed_targets(send: SendPush, wanted: Collection[int] | None = None) -> dict[int, Targets]:
    """Return the targets by partition of a push to listed devices; with `wanted`, only those in these partitions.

    Repeated devices count once. ValueError: the columns of `send.audience.devices` differ in length.
    """
    devices = send.audience.devices
    partitions, numbers, offsets = devices.partitions, devices.numbers, devices.id_offsets
    count = len(partitions) // 2
    if (len(partitions), len(numbers), len(offsets)) != (2 * count, 4 * count, 4 * count):
        raise ValueError(f"the devices of push {send.msgid} are columns of unequal length")
    if len(devices.alias_indexes) not in (0, 2 * count):
        raise ValueError(f"the aliases of push {send.msgid} are a column of another length than its devices")
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


def alias_of_target(send: SendPush, partition: int, number: int) -> str | None:
    """Return the alias by which the device became a target of the push; None: by none, or by one that is not known."""
    devices = send.audience.devices
    if not devices.aliases:
        return None
    if not devices.alias_indexes:
        return devices.aliases[0]
    rows = (np.frombuffer(devices.partitions, "<u2") == partition) & (np.frombuffer(devices.numbers, "<u4") == number)
    indexes = np.frombuffer(devices.alias_indexes, "<u2")[rows].tolist()
    return devices.aliases[indexes[0]] if indexes and indexes[0] < len(devices.aliases) else None


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


# How delivery names devices: by app, partition and device number.

AppPartition = tuple[str, int]
"""An appkey and a device partition."""


class DeviceAddress(NamedTuple):
    """One device of an app; `number` is its device number in the partition."""

    appkey: str
    partition: int
    number: int

    @property
    def app_partition(self) -> AppPartition:
        return self.appkey, self.partition
