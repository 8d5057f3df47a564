"""The messages that devices were sent, and their reports on them; reports on any other message are refused.

Folded from the outcomes alone, so it does not depend on when pushes end, and outlives them. It is bounded for each app
and partition; the oldest messages are forgotten first, so a busy app shortens its own memory and no other's.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind
from services.delivery.state.addresses import AppPartition, DeviceAddress
from services.delivery.state.audience_parts import packed

MAX_COST_BYTES = 1024 * 1024
"""Upper bound of the memory for what the devices of one app in one partition were sent; their reports take at most
three times as much."""

REPORTED_KINDS = (
    OutcomeKind.OUTCOME_KIND_SHOWN,
    OutcomeKind.OUTCOME_KIND_CLICKED,
    OutcomeKind.OUTCOME_KIND_DISMISSED,
)
"""What devices report besides acknowledgements."""

_SENT = OutcomeKind.OUTCOME_KIND_SENT
_SINGLE_BYTES = 16
_BITMAP_BYTES = 512
_CONTAINER_BYTES = 8192
_CONTAINER_NUMBERS = 65_536

PartitionRow = tuple[int, bytes, bytes, bytes, list[tuple[int, bytes]], list[tuple[int, int, bytes]]]
"""`forgotten_msgid`, the columns of single messages, bitmaps by message id, and bitmaps of reports by message id and
kind."""

SentRow = tuple[str, int, PartitionRow]
"""Appkey, partition, and their messages."""


class SentMessages:
    """The messages of all apps, by app and partition."""

    def __init__(self) -> None:
        self._by_app_partition: dict[AppPartition, _PartitionMessages] = {}

    def fold(self, partition: int, outcomes: AppOutcomes) -> None:
        """Note what these outcomes say was sent and reported; the columns are of equal length."""
        kinds = outcomes.kinds
        msgids = numpy.frombuffer(outcomes.msgids, "<u8")
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")
        for kind in (_SENT, *REPORTED_KINDS):
            if kind not in kinds:
                continue
            chosen = numpy.frombuffer(kinds, "u1") == kind
            messages = self._by_app_partition.setdefault((outcomes.appkey, partition), _PartitionMessages())
            for msgid, some in _grouped(msgids[chosen], numbers[chosen]):
                if kind == _SENT:
                    messages.add(msgid, some)
                else:
                    messages.report(msgid, some, kind)

    def was_sent(self, device: DeviceAddress, msgid: int) -> bool | None:
        """Return whether the device was sent the message; None: the message is too old to be known."""
        messages = self._by_app_partition.get(device.app_partition)
        return messages is not None and messages.contains(msgid, device.number)

    def was_reported(self, device: DeviceAddress, msgid: int, kind: int) -> bool:
        """Return whether the device has reported this kind on the message."""
        messages = self._by_app_partition.get(device.app_partition)
        return messages is not None and messages.is_reported(msgid, device.number, kind)

    def dump(self) -> Iterator[SentRow]:
        for appkey, partition in sorted(self._by_app_partition):
            yield appkey, partition, self._by_app_partition[appkey, partition].dump()

    def load(self, row: SentRow) -> None:
        """Add one row of `dump`."""
        appkey, partition, messages = row
        self._by_app_partition[appkey, partition] = _PartitionMessages.load(messages)


class _PartitionMessages:
    """The messages of one app in one partition.

    A message that one device was sent is an entry of three columns sorted by message id; one that several devices were
    sent is a bitmap. Messages up to `_forgotten_msgid` are forgotten.
    """

    def __init__(self) -> None:
        self._forgotten_msgid = 0
        self._single_msgids = array("Q")
        self._single_numbers = array("I")
        self._single_reports = array("B")
        self._bitmaps: dict[int, BitMap] = {}
        self._bitmap_msgids: list[int] = []
        self._reports: dict[tuple[int, int], BitMap] = {}
        self._cost_bytes = 0

    def contains(self, msgid: int, number: int) -> bool | None:
        """Return whether the device was sent the message; None: the message is forgotten."""
        if msgid <= self._forgotten_msgid:
            return None
        if (bitmap := self._bitmaps.get(msgid)) is not None:
            return number in bitmap
        at = self._single(msgid)
        return at is not None and self._single_numbers[at] == number

    def is_reported(self, msgid: int, number: int, kind: int) -> bool:
        if msgid in self._bitmaps:
            return number in self._reports.get((msgid, kind), ())
        at = self._single(msgid)
        return at is not None and self._single_numbers[at] == number and bool(self._single_reports[at] & 1 << kind)

    def add(self, msgid: int, numbers: BitMap) -> None:
        """Note that these devices were sent the message."""
        if msgid <= self._forgotten_msgid:
            return
        at = self._single(msgid)
        if (bitmap := self._bitmaps.get(msgid)) is not None:
            self._cost_bytes -= _cost_bytes(bitmap)
            bitmap |= numbers
            self._cost_bytes += _cost_bytes(bitmap)
        elif at is None and len(numbers) == 1:
            self._add_single(msgid, numbers[0])
        elif at is None or numbers != BitMap([self._single_numbers[at]]):
            self._add_bitmap(msgid, numbers, at)
        self._forget_oldest()

    def report(self, msgid: int, numbers: BitMap, kind: int) -> None:
        """Note that these devices have reported this kind; devices that were not sent the message are ignored."""
        if (bitmap := self._bitmaps.get(msgid)) is not None:
            if sent := bitmap & numbers:
                self._reports[msgid, kind] = self._reports.get((msgid, kind), BitMap()) | sent
        elif (at := self._single(msgid)) is not None and self._single_numbers[at] in numbers:
            self._single_reports[at] |= 1 << kind

    def dump(self) -> PartitionRow:
        return (
            self._forgotten_msgid,
            self._single_msgids.tobytes(),
            self._single_numbers.tobytes(),
            self._single_reports.tobytes(),
            [(msgid, packed(self._bitmaps[msgid])) for msgid in self._bitmap_msgids],
            [(*key, packed(self._reports[key])) for key in sorted(self._reports)],
        )

    @classmethod
    def load(cls, row: PartitionRow) -> "_PartitionMessages":
        loaded = cls()
        loaded._forgotten_msgid, msgids, numbers, single_reports, bitmaps, reports = row
        loaded._single_msgids.frombytes(msgids)
        loaded._single_numbers.frombytes(numbers)
        loaded._single_reports.frombytes(single_reports)
        loaded._bitmaps = {msgid: BitMap.deserialize(bitmap) for msgid, bitmap in bitmaps}
        loaded._bitmap_msgids = sorted(loaded._bitmaps)
        loaded._reports = {(msgid, kind): BitMap.deserialize(bitmap) for msgid, kind, bitmap in reports}
        loaded._cost_bytes = _SINGLE_BYTES * len(loaded._single_msgids) + sum(
            map(_cost_bytes, loaded._bitmaps.values())
        )
        return loaded

    def _single(self, msgid: int) -> int | None:
        """Return the position of the message in the columns."""
        at = bisect_left(self._single_msgids, msgid)
        return at if at < len(self._single_msgids) and self._single_msgids[at] == msgid else None

    def _add_single(self, msgid: int, number: int) -> None:
        at = bisect_left(self._single_msgids, msgid)
        self._single_msgids.insert(at, msgid)
        self._single_numbers.insert(at, number)
        self._single_reports.insert(at, 0)
        self._cost_bytes += _SINGLE_BYTES

    def _add_bitmap(self, msgid: int, numbers: BitMap, at: int | None) -> None:
        """Add a bitmap; `at` is the position of the message if it was a single one until now."""
        if at is not None:
            number, reported = self._single_numbers[at], self._single_reports[at]
            numbers = numbers | BitMap([number])
            self._reports |= {(msgid, kind): BitMap([number]) for kind in REPORTED_KINDS if reported & 1 << kind}
            self._remove_single(at)
        self._bitmaps[msgid] = numbers
        insort(self._bitmap_msgids, msgid)
        self._cost_bytes += _cost_bytes(numbers)

    def _remove_single(self, at: int) -> int:
        self._cost_bytes -= _SINGLE_BYTES
        del self._single_numbers[at], self._single_reports[at]
        return self._single_msgids.pop(at)

    def _forget_oldest(self) -> None:
        while self._cost_bytes > MAX_COST_BYTES:
            if not self._bitmap_msgids or (self._single_msgids and self._single_msgids[0] < self._bitmap_msgids[0]):
                self._forgotten_msgid = self._remove_single(0)
                continue
            self._forgotten_msgid = self._bitmap_msgids.pop(0)
            self._cost_bytes -= _cost_bytes(self._bitmaps.pop(self._forgotten_msgid))
            for kind in REPORTED_KINDS:
                self._reports.pop((self._forgotten_msgid, kind), None)


def _cost_bytes(bitmap: BitMap) -> int:
    """Return an upper bound of the bitmap's memory, which only grows when devices are added."""
    return _BITMAP_BYTES + min(2 * len(bitmap), _CONTAINER_BYTES * (bitmap.max() // _CONTAINER_NUMBERS + 1))


def _grouped(msgids: NDArray[numpy.uint64], numbers: NDArray[numpy.uint32]) -> Iterable[tuple[int, BitMap]]:
    """Return the device numbers by message id."""
    if (msgids == msgids[0]).all():
        return [(int(msgids[0]), BitMap(array("I", numbers.tobytes())))]
    groups: dict[int, BitMap] = {}
    for msgid, number in zip(msgids.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(msgid, BitMap()).add(number)
    return groups.items()
