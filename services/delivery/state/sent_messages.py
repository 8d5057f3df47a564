"""The messages that devices were sent, and their reports on them; reports on any other message are refused.

This state is folded from the outcomes alone, so it does not depend on when pushes end, and outlives them. It is bounded
for each app and partition; the messages sent first are forgotten first, so a busy app shortens its own memory and no
other's. The message id says nothing about that order: a timed push has the id of its creation, up to a year before it
is sent.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind
from services.delivery.state.audience_parts import AppPartition, DeviceAddress, packed

MAX_COST_BYTES = 1024 * 1024
"""Upper bound of the memory for what the devices of one app in one partition were sent; their reports take at most
five times as much."""

REPORTED_KINDS = (
    OutcomeKind.OUTCOME_KIND_SHOWN,
    OutcomeKind.OUTCOME_KIND_CLICKED,
    OutcomeKind.OUTCOME_KIND_DISMISSED,
)
"""The outcomes that devices report besides acknowledgements."""

BLOCK_COST_BYTES = MAX_COST_BYTES // 4
"""A block takes no further message once it costs this; as blocks are forgotten whole, the memory of a busy app is never
shorter than three quarters of MAX_COST_BYTES, but for broadcasts that reach further devices later."""

_SENT = OutcomeKind.OUTCOME_KIND_SENT
_CLAIMED = OutcomeKind.OUTCOME_KIND_CLAIMED
_RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED
_TOLD = (*REPORTED_KINDS, _RECEIVED)
_BITS: dict[int, int] = {**{kind: 1 << kind for kind in _TOLD}, _CLAIMED: 1 << 7}
"""The bit of each kind in `_Block._single_reports`; the numbers of reported kinds are below 7."""

_SINGLE_BYTES = 16
_BITMAP_BYTES = 512
_CONTAINER_BYTES = 8192
_CONTAINER_NUMBERS = 65_536

BlockRow = tuple[bytes, bytes, bytes, list[tuple[int, bytes]], list[tuple[int, int, bytes]]]
"""The columns of single messages, bitmaps by message id, and bitmaps of reports by message id and kind."""

PartitionRow = tuple[int, int, list[BlockRow]]
"""`next_offset`, `highest_forgotten`, and the blocks, oldest first."""

SentRow = tuple[str, int, PartitionRow]
"""Appkey, partition, and their messages."""


class SentMessages:
    """The messages of all apps, by app and partition."""

    def __init__(self) -> None:
        self._by_app_partition: dict[AppPartition, _PartitionMessages] = {}

    def fold(self, partition: int, offset: int, outcomes: AppOutcomes, *, is_sent_final: bool = False) -> None:
        """Note what these outcomes say was sent and reported; the columns are of equal length.

        `is_sent_final`: the app's messages have their final outcome when they are sent. They are noted only where they
        carry their ids, as devices report no others; then acknowledgements are kept, as those of claimed messages are.
        `offset` is that of their record in the partition of `deliveries`. Outcomes that are folded already are
        ignored: a snapshot may be newer than the offsets in it.
        """
        kinds = outcomes.kinds
        known = self._by_app_partition.get((outcomes.appkey, partition))
        if is_sent_final:
            foldable = ((_SENT,) if outcomes.carry_msgids else ()) + (_TOLD if known or outcomes.carry_msgids else ())
        else:
            has_claims = _CLAIMED in kinds or (known is not None and known.has_claims)
            foldable = (_SENT, _CLAIMED) + (_TOLD if has_claims else REPORTED_KINDS)
        folded = [kind for kind in foldable if kind in kinds]
        if not folded:
            return
        messages = self._by_app_partition.setdefault((outcomes.appkey, partition), known or _PartitionMessages())
        if offset < messages.next_offset:
            return
        messages.next_offset = offset + 1
        msgids = numpy.frombuffer(outcomes.msgids, "<u8")
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")
        for kind in folded:
            chosen = numpy.frombuffer(kinds, "u1") == kind
            for msgid, some in _grouped(msgids[chosen], numbers[chosen]):
                if kind in (_SENT, _CLAIMED):
                    messages.add(msgid, some)
                if kind != _SENT:
                    messages.report(msgid, some, kind, of_all_sent=is_sent_final)

    def was_sent(self, device: DeviceAddress, msgid: int) -> bool | None:
        """Return whether the device was sent the message; None: that may be forgotten."""
        messages = self._by_app_partition.get(device.app_partition)
        return messages is not None and messages.contains(msgid, device.number)

    def sent_to(self, app_partition: AppPartition, msgid: int) -> BitMap | None:
        """Return the devices that were sent the message, by any way; None: that may be forgotten."""
        messages = self._by_app_partition.get(app_partition)
        return messages.sent_to(msgid) if messages is not None else BitMap()

    def was_reported(self, device: DeviceAddress, msgid: int, kind: int) -> bool:
        """Return whether the device has reported this kind on the message; RECEIVED only where `fold` keeps it."""
        messages = self._by_app_partition.get(device.app_partition)
        return messages is not None and messages.is_reported(msgid, device.number, kind)

    def was_claimed(self, device: DeviceAddress, msgid: int) -> bool:
        """Return whether a channel has claimed the device's message, so that the channel may show it."""
        return self.was_reported(device, msgid, _CLAIMED)

    def dump(self) -> Iterator[SentRow]:
        for appkey, partition in sorted(self._by_app_partition):
            yield appkey, partition, self._by_app_partition[appkey, partition].dump()

    def load(self, row: SentRow) -> None:
        """Add one row of `dump`."""
        appkey, partition, messages = row
        self._by_app_partition[appkey, partition] = _PartitionMessages.load(messages)


class _PartitionMessages:
    """The messages of one app in one partition, in blocks by the order in which they were first sent.

    `next_offset` follows that of the last outcomes that were folded. Every forgotten message has an id of at most
    `_highest_forgotten`; a message with such an id that no block has may also never have been sent.
    """

    __slots__ = ("_blocks", "_highest_forgotten", "next_offset")

    def __init__(self) -> None:
        self.next_offset = 0
        self._highest_forgotten = 0
        self._blocks: list[_Block] = []

    @property
    def has_claims(self) -> bool:
        """Whether a channel has claimed one of the messages."""
        return any(block.has_claims for block in self._blocks)

    def contains(self, msgid: int, number: int) -> bool | None:
        """Return whether the device was sent the message; None: that may be forgotten."""
        block = self._block(msgid)
        if block is not None and block.contains(msgid, number):
            return True
        return None if msgid <= self._highest_forgotten else False

    def sent_to(self, msgid: int) -> BitMap | None:
        """Return the devices that were sent the message; None: that may be forgotten."""
        if (block := self._block(msgid)) is not None:
            return block.sent_to(msgid)
        return None if msgid <= self._highest_forgotten else BitMap()

    def is_reported(self, msgid: int, number: int, kind: int) -> bool:
        block = self._block(msgid)
        return block is not None and block.is_reported(msgid, number, kind)

    def add(self, msgid: int, numbers: BitMap) -> None:
        """Note that these devices were sent the message."""
        block = self._block(msgid) or self._block_for_new()
        block.add(msgid, numbers)
        while sum([block.cost_bytes for block in self._blocks]) > MAX_COST_BYTES:
            self._highest_forgotten = max(self._highest_forgotten, self._blocks.pop(0).highest_msgid())

    def report(self, msgid: int, numbers: BitMap, kind: int, *, of_all_sent: bool) -> None:
        """Note that these devices have reported this kind; devices that were not sent the message are ignored."""
        if (block := self._block(msgid)) is not None:
            block.report(msgid, numbers, kind, of_all_sent=of_all_sent)

    def dump(self) -> PartitionRow:
        return self.next_offset, self._highest_forgotten, [block.dump() for block in self._blocks]

    @classmethod
    def load(cls, row: PartitionRow) -> "_PartitionMessages":
        loaded = cls()
        loaded.next_offset, loaded._highest_forgotten, blocks = row
        loaded._blocks = [_Block.load(block) for block in blocks]
        return loaded

    def _block(self, msgid: int) -> "_Block | None":
        """Return the block that has the message."""
        for block in reversed(self._blocks):
            if msgid in block:
                return block
        return None

    def _block_for_new(self) -> "_Block":
        """Return the last block, or a new one if that is full."""
        if not self._blocks or self._blocks[-1].cost_bytes >= BLOCK_COST_BYTES:
            self._blocks.append(_Block())
        return self._blocks[-1]


class _Block:
    """Messages that were first sent one after the other.

    A message that one device was sent is an entry of three columns sorted by message id; one that several devices were
    sent is a bitmap. A claim is kept as a report is. An acknowledgement is kept only where it may come after the push
    is forgotten: where there is a claim, and where no message waits for it.
    """

    __slots__ = (
        *("_bitmaps", "_reports", "_single_msgids", "_single_numbers", "_single_reports"),
        *("cost_bytes", "has_claims"),
    )

    def __init__(self) -> None:
        self.cost_bytes = 0
        self.has_claims = False
        self._single_msgids = array("Q")
        self._single_numbers = array("I")
        self._single_reports = array("B")
        self._bitmaps: dict[int, BitMap] = {}
        self._reports: dict[tuple[int, int], BitMap] = {}

    def __contains__(self, msgid: int) -> bool:
        return msgid in self._bitmaps or self._single(msgid) is not None

    def contains(self, msgid: int, number: int) -> bool:
        """Return whether the device was sent the message."""
        if (bitmap := self._bitmaps.get(msgid)) is not None:
            return number in bitmap
        at = self._single(msgid)
        return at is not None and self._single_numbers[at] == number

    def sent_to(self, msgid: int) -> BitMap:
        """Return the devices that were sent the message, which the block has."""
        if (bitmap := self._bitmaps.get(msgid)) is not None:
            return bitmap
        at = self._single(msgid)
        return BitMap() if at is None else BitMap([self._single_numbers[at]])

    def highest_msgid(self) -> int:
        return max((*self._single_msgids[-1:], *self._bitmaps))

    def is_reported(self, msgid: int, number: int, kind: int) -> bool:
        if msgid in self._bitmaps:
            return number in self._reports.get((msgid, kind), ())
        at = self._single(msgid)
        return at is not None and self._single_numbers[at] == number and bool(self._single_reports[at] & _BITS[kind])

    def add(self, msgid: int, numbers: BitMap) -> None:
        """Note that these devices were sent the message."""
        at = self._single(msgid)
        if (bitmap := self._bitmaps.get(msgid)) is not None:
            self.cost_bytes -= _cost_bytes(bitmap)
            bitmap |= numbers
            self.cost_bytes += _cost_bytes(bitmap)
        elif at is None and len(numbers) == 1:
            self._add_single(msgid, numbers[0])
        elif at is None or numbers != BitMap([self._single_numbers[at]]):
            self._add_bitmap(msgid, numbers, at)

    def report(self, msgid: int, numbers: BitMap, kind: int, *, of_all_sent: bool) -> None:
        """Note that these devices have reported this kind; devices that were not sent the message are ignored.

        `of_all_sent`: also acknowledgements of messages without a claim.
        """
        self.has_claims |= kind == _CLAIMED
        if (bitmap := self._bitmaps.get(msgid)) is not None:
            if kind == _RECEIVED and not of_all_sent:
                bitmap = self._reports.get((msgid, _CLAIMED), BitMap())
            if sent := bitmap & numbers:
                self._reports[msgid, kind] = self._reports.get((msgid, kind), BitMap()) | sent
        elif (
            (at := self._single(msgid)) is not None
            and self._single_numbers[at] in numbers
            and (kind != _RECEIVED or of_all_sent or self._single_reports[at] & _BITS[_CLAIMED])
        ):
            self._single_reports[at] |= _BITS[kind]

    def dump(self) -> BlockRow:
        return (
            self._single_msgids.tobytes(),
            self._single_numbers.tobytes(),
            self._single_reports.tobytes(),
            [(msgid, packed(self._bitmaps[msgid])) for msgid in sorted(self._bitmaps)],
            [(*key, packed(self._reports[key])) for key in sorted(self._reports)],
        )

    @classmethod
    def load(cls, row: BlockRow) -> "_Block":
        loaded = cls()
        msgids, numbers, single_reports, bitmaps, reports = row
        loaded._single_msgids.frombytes(msgids)
        loaded._single_numbers.frombytes(numbers)
        loaded._single_reports.frombytes(single_reports)
        loaded._bitmaps = {msgid: BitMap.deserialize(bitmap) for msgid, bitmap in bitmaps}
        loaded._reports = {(msgid, kind): BitMap.deserialize(bitmap) for msgid, kind, bitmap in reports}
        loaded.has_claims = any(kind == _CLAIMED for _, kind in loaded._reports) or bool(
            (numpy.frombuffer(single_reports, "u1") & _BITS[_CLAIMED]).any()
        )
        loaded.cost_bytes = _SINGLE_BYTES * len(loaded._single_msgids) + sum(map(_cost_bytes, loaded._bitmaps.values()))
        return loaded

    def _single(self, msgid: int) -> int | None:
        """Return the position of the message in the columns. Most new ids are higher than all of them."""
        msgids = self._single_msgids
        if not msgids or msgid > msgids[-1]:
            return None
        at = bisect_left(msgids, msgid)
        return at if msgids[at] == msgid else None

    def _add_single(self, msgid: int, number: int) -> None:
        at = bisect_left(self._single_msgids, msgid)
        self._single_msgids.insert(at, msgid)
        self._single_numbers.insert(at, number)
        self._single_reports.insert(at, 0)
        self.cost_bytes += _SINGLE_BYTES

    def _add_bitmap(self, msgid: int, numbers: BitMap, at: int | None) -> None:
        """Add a bitmap; `at` is the position of the message if it was a single one until now."""
        if at is not None:
            number, reported = self._single_numbers[at], self._single_reports[at]
            numbers = numbers | BitMap([number])
            self._reports |= {(msgid, kind): BitMap([number]) for kind, bit in _BITS.items() if reported & bit}
            self._remove_single(at)
        self._bitmaps[msgid] = numbers
        self.cost_bytes += _cost_bytes(numbers)

    def _remove_single(self, at: int) -> None:
        self.cost_bytes -= _SINGLE_BYTES
        del self._single_msgids[at], self._single_numbers[at], self._single_reports[at]


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
