"""Devices in the state of delivery: their backlogs and badges, and which outcomes are final."""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind
from services.delivery.state.audience_parts import AppPartition, AudiencePart, DeviceAddress, ListedAudience
from services.delivery.state.pushes import PackedPushes
from services.domain.recorded_reasons import FixedReason


class Backlogs:
    """The pending pushes: unicasts in each device's mailbox, oldest first; broadcasts by app and partition.

    An empty mailbox takes no memory.
    """

    def __init__(self) -> None:
        self._mailboxes: dict[AppPartition, dict[int, list[int]]] = {}
        self._broadcasts: dict[AppPartition, set[int]] = {}

    def add(self, app_partition: AppPartition, msgid: int, part: AudiencePart) -> None:
        """Add a push that has started for this audience."""
        if not isinstance(part, ListedAudience):
            self._broadcasts.setdefault(app_partition, set()).add(msgid)
            return
        mailboxes = self._mailboxes.setdefault(app_partition, {})
        for number in part.targets:
            mailboxes.setdefault(number, []).append(msgid)

    def add_packed(self, pushes: PackedPushes) -> None:
        """Add pushes that a snapshot restores."""
        places = zip(pushes.apps, pushes.partitions, pushes.numbers, pushes.msgids, strict=True)
        for app, partition, number, msgid in places:
            mailboxes = self._mailboxes.setdefault((pushes.appkeys[app], partition), {})
            mailboxes.setdefault(number, []).append(msgid)

    def remove(self, app_partition: AppPartition, msgid: int, part: AudiencePart) -> None:
        """Remove a push that has ended or has a final outcome on all devices."""
        if isinstance(part, ListedAudience):
            self.remove_unicast(app_partition, msgid, part.targets)
        else:
            self._broadcasts[app_partition].discard(msgid)

    def remove_unicast(self, app_partition: AppPartition, msgid: int, numbers: Iterable[int]) -> None:
        """Remove a push from the mailboxes of these devices, where it is in them."""
        mailboxes = self._mailboxes[app_partition]
        for number in numbers:
            mailbox = mailboxes.get(number, [])
            if msgid in mailbox:
                mailbox.remove(msgid)
                if not mailbox:
                    del mailboxes[number]

    def broadcasts(self, app_partition: AppPartition) -> Iterable[int]:
        """Return the broadcasts and multicasts that have started in the partition and not ended."""
        return self._broadcasts.get(app_partition, ())

    def mailbox(self, device: DeviceAddress) -> Sequence[int]:
        """Return the unicasts that are pending for the device, oldest first."""
        return self._mailboxes.get(device.app_partition, {}).get(device.number, ())

    def pushes(self, device: DeviceAddress) -> list[int]:
        """Return the pushes that may be pending for the device, in no particular order."""
        return [*self.mailbox(device), *self.broadcasts(device.app_partition)]


# The last badge sent to each iOS device; pushes that increment badges continue from it.

BadgeRow = tuple[str, int, bytes, bytes]
"""Appkey, partition, badges (uint32 each) and times (int64 each, milliseconds since 1970), by device number."""


class Badges:
    """The last badge and its time by device, folded from outcomes; columns over the dense device numbers, 12 bytes a
    device."""

    def __init__(self) -> None:
        self._columns: dict[AppPartition, tuple[NDArray[numpy.uint32], NDArray[numpy.int64]]] = {}

    def fold(self, partition: int, outcomes: AppOutcomes) -> None:
        """Store the badges of these outcomes; of several for one device the last row counts."""
        badges = numpy.frombuffer(outcomes.badges, "<u4")
        if not len(badges):
            return
        sent = badges > 0
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")[sent]
        values, times_ms = self._grown((outcomes.appkey, partition), int(numbers.max(initial=0)) + 1)
        values[numbers] = badges[sent] - 1
        times_ms[numbers] = numpy.frombuffer(outcomes.times_ms, "<i8")[sent]

    def last(self, app_partition: AppPartition, number: int, active_ms: int) -> int:
        """Return the badge that the device shows: 0 if the app was used (`active_ms`) since the last one was sent."""
        values, times_ms = self._columns.get(app_partition, ((), ()))
        if number >= len(values) or active_ms >= times_ms[number]:
            return 0
        return int(values[number])

    def dump(self) -> list[BadgeRow]:
        return [
            (*app_partition, values.tobytes(), times_ms.tobytes())
            for app_partition, (values, times_ms) in sorted(self._columns.items())
        ]

    def load(self, rows: list[BadgeRow]) -> None:
        for appkey, partition, values, times_ms in rows:
            columns = numpy.frombuffer(values, numpy.uint32).copy(), numpy.frombuffer(times_ms, numpy.int64).copy()
            self._columns[appkey, partition] = columns

    def _grown(self, app_partition: AppPartition, size: int) -> tuple[NDArray[numpy.uint32], NDArray[numpy.int64]]:
        """Return columns of at least this size. Sizes are powers of two, so equal contents have equal columns."""
        values, times_ms = self._columns.get(app_partition, (numpy.zeros(0, numpy.uint32), numpy.zeros(0, numpy.int64)))
        if size > len(values):
            more = (1 << (size - 1).bit_length()) - len(values)
            self._columns[app_partition] = numpy.pad(values, (0, more)), numpy.pad(times_ms, (0, more))
        return self._columns[app_partition]


# Final outcomes: those after which a message is not sent to the device any more.

FINAL_OUTCOMES = frozenset(
    {
        OutcomeKind.OUTCOME_KIND_RECEIVED,
        OutcomeKind.OUTCOME_KIND_FAILED,
        OutcomeKind.OUTCOME_KIND_EXPIRED,
        OutcomeKind.OUTCOME_KIND_CANCELLED,
        OutcomeKind.OUTCOME_KIND_DROPPED,
        OutcomeKind.OUTCOME_KIND_HANDED_OVER,
    }
)
"""On iOS SENT is final too: no message waits for its acknowledgement, which few iOS devices send."""

_CLAIMED, _RETURNED = OutcomeKind.OUTCOME_KIND_CLAIMED, OutcomeKind.OUTCOME_KIND_RETURNED
_IS_FINAL = numpy.isin(numpy.arange(256), list(FINAL_OUTCOMES))
_IS_FINAL_WITH_SENT = numpy.isin(numpy.arange(256), [*FINAL_OUTCOMES, OutcomeKind.OUTCOME_KIND_SENT])


class FinalOutcomes(NamedTuple):
    """Device numbers by message id: `concluded` have a final outcome, `withdrawn` one that a receipt may follow.

    A message that was dropped because the device changed its alias may be on its way to the device.
    """

    concluded: dict[int, list[int]]
    withdrawn: dict[int, list[int]]


def final_outcomes(outcomes: AppOutcomes, is_sent_final: bool) -> FinalOutcomes:
    """Return the devices with a final outcome. `is_sent_final`: the channel has no acknowledgements.

    ValueError: the columns have different lengths.
    """
    msgids = numpy.frombuffer(outcomes.msgids, "<u8")
    numbers = numpy.frombuffer(outcomes.numbers, "<u4")
    kinds = numpy.frombuffer(outcomes.kinds, "u1")
    badges = len(outcomes.badges) // 4 or len(kinds)
    if not len(msgids) == len(numbers) == len(kinds) == len(outcomes.times_ms) // 8 == badges:
        raise ValueError("outcomes have columns of different lengths")
    chosen = (_IS_FINAL_WITH_SENT if is_sent_final else _IS_FINAL)[kinds]
    if is_sent_final or FixedReason.ALIAS_CHANGED not in outcomes.reasons:
        return FinalOutcomes(_grouped(msgids[chosen], numbers[chosen]), {})
    has_reason = _has_reason(outcomes, FixedReason.ALIAS_CHANGED)
    withdrawn = (kinds == OutcomeKind.OUTCOME_KIND_DROPPED) & has_reason
    return FinalOutcomes(
        _grouped(msgids[chosen & ~withdrawn], numbers[chosen & ~withdrawn]),
        _grouped(msgids[withdrawn], numbers[withdrawn]),
    )


def _has_reason(outcomes: AppOutcomes, reason: FixedReason) -> NDArray[numpy.bool_]:
    """Return which rows have the reason. ValueError: the columns have different lengths."""
    if reason not in outcomes.reasons:
        return numpy.zeros(len(outcomes.kinds), bool)
    indexes = numpy.frombuffer(outcomes.reason_indexes, "u1")
    if len(indexes) != len(outcomes.kinds):
        raise ValueError("outcomes have columns of different lengths")
    found: NDArray[numpy.bool_] = indexes == list(outcomes.reasons).index(reason) + 1
    return found


# Claims: the outcomes by which a message goes to a channel and comes back.


class ChannelChange(NamedTuple):
    """The channel has claimed the message of these devices, or has returned it; or it was recalled from the channel."""

    kind: int
    channel: int
    msgid: int
    numbers: BitMap
    is_recalled: bool = False


def channel_changes(outcomes: AppOutcomes) -> list[ChannelChange]:
    """Return the claims and returns in the order of their rows. ValueError: the columns have different lengths."""
    if _CLAIMED not in outcomes.kinds and _RETURNED not in outcomes.kinds:
        return []
    chosen = numpy.flatnonzero(numpy.isin(numpy.frombuffer(outcomes.kinds, "u1"), (_CLAIMED, _RETURNED)))
    kinds = numpy.frombuffer(outcomes.kinds, "u1")[chosen]
    channels = _channels(outcomes)[chosen]
    msgids = numpy.frombuffer(outcomes.msgids, "<u8")[chosen]
    numbers = numpy.frombuffer(outcomes.numbers, "<u4")[chosen]
    recalled = _has_reason(outcomes, FixedReason.RECALLED)[chosen]
    differs = numpy.zeros(len(chosen), bool)
    for column in (kinds, channels, msgids, recalled):
        differs[1:] |= column[1:] != column[:-1]
    starts = [0, *numpy.flatnonzero(differs).tolist()]
    return [
        ChannelChange(
            *(int(kinds[start]), int(channels[start]), int(msgids[start])),
            *(_bitmap(numbers[start:end]), bool(recalled[start])),
        )
        for start, end in zip(starts, [*starts[1:], len(chosen)], strict=True)
    ]


def _bitmap(numbers: NDArray[numpy.uint32]) -> BitMap:
    return BitMap(array("I", numbers.tobytes()))


def _channels(outcomes: AppOutcomes) -> NDArray[numpy.uint8]:
    channels = numpy.frombuffer(outcomes.channels, "u1")
    if not len(channels):
        return numpy.zeros(len(outcomes.kinds), numpy.uint8)
    if len(channels) != len(outcomes.kinds):
        raise ValueError("outcomes have columns of different lengths")
    return channels


def _grouped(msgids: NDArray[numpy.uint64], numbers: NDArray[numpy.uint32]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for msgid, number in zip(msgids.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(msgid, []).append(number)
    return groups
