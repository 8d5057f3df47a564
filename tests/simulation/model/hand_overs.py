"""Checks of hand-overs by the log as it was when things happened."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import DELIVERIES, DEVICES, decode
from services.log.port import NewRecord, Partition, Record
from services.replica.epochs import Epochs
from tests.soak.checks import Observations, Violation
from tests.soak.history import DeviceNumber

_KIND = OutcomeKind
_END_BY_CHANNEL = frozenset({_KIND.OUTCOME_KIND_HANDED_OVER, _KIND.OUTCOME_KIND_FAILED})
_ENDS = frozenset({*_END_BY_CHANNEL, _KIND.OUTCOME_KIND_RECEIVED, _KIND.OUTCOME_KIND_DROPPED})


@dataclass
class _Told:
    """What the log tells of one message on one device: the channel that has it, those that returned it, its end."""

    claimed_by: int = 0
    returned_by: set[int] = field(default_factory=set)
    end: int = 0
    is_shown: bool = False


class HandOverLog:
    """Judges claims and their ends while the log stores them, and what browsers show by what the log has then.

    `note` takes the place of the function that a Broker is given, which it calls.
    """

    def __init__(self, note: Callable[[Partition, int, Sequence[NewRecord]], None]) -> None:
        self._note = note
        self._epochs = Epochs()
        self._told: dict[tuple[int, DeviceNumber], _Told] = {}
        self._numbers: dict[str, DeviceNumber] = {}
        self._broken: list[Violation] = []

    def note(self, partition: Partition, offset: int, new_records: Sequence[NewRecord]) -> None:
        self._note(partition, offset, new_records)
        if partition.topic not in (DEVICES.name, DELIVERIES.name):
            return
        for at, new in enumerate(new_records, offset):
            record = Record(new[0], new[1], at, *new[2:])
            fact = decode(record)
            if not self._epochs.admits(record, fact):
                continue
            if partition.topic == DELIVERIES.name:
                for columns in fact.outcomes.apps:
                    self._fold(partition.number, columns)
            elif fact.HasField("device"):
                self._numbers[fact.device.token] = DeviceNumber(fact.device.partition, fact.device.number)

    def shows(self, token: str, msgid: int) -> None:
        """A browser shows a message that came by its push service."""
        told = self._of(msgid, self._numbers[token])
        told.is_shown = True
        if not told.claimed_by and told.end not in _ENDS:
            self._break(f"{token} shows the message, and the log has no claim", msgid)

    def found(self, observed: Observations) -> Iterator[Violation]:
        """Yield what was broken, also in the end: each claim has an end, and the log says who was to show what."""
        yield from self._broken
        for (msgid, number), told in self._told.items():
            is_ended = number.partition in observed.history.ended.get(msgid, ())
            if told.claimed_by and not is_ended:
                yield _violation(f"{number}: the claim of channel {told.claimed_by} has no end", msgid)
            if told.end == _KIND.OUTCOME_KIND_HANDED_OVER and not told.is_shown:
                yield _violation(f"{number}: handed over and not shown", msgid)
            if told.is_shown and not told.end and not is_ended:
                yield _violation(f"{number}: shown by a channel, and the log has no end of it", msgid)

    def _fold(self, partition: int, columns: AppOutcomes) -> None:
        reasons = ["", *columns.reasons]
        rows = zip(
            numpy.frombuffer(columns.msgids, "<u8").tolist(),
            numpy.frombuffer(columns.numbers, "<u4").tolist(),
            columns.kinds,
            columns.channels or bytes(len(columns.kinds)),
            [reasons[index] for index in columns.reason_indexes or bytes(len(columns.kinds))],
            strict=True,
        )
        for msgid, number, kind, channel, reason in rows:
            self._outcome(msgid, DeviceNumber(partition, number), kind, channel, reason)

    def _outcome(self, msgid: int, number: DeviceNumber, kind: int, channel: int, reason: str) -> None:
        told = self._of(msgid, number)
        if kind == _KIND.OUTCOME_KIND_CLAIMED:
            if told.claimed_by or told.end or channel in told.returned_by:
                self._break(f"{number}: claimed by {channel} while {told}", msgid)
            told.claimed_by = channel
            return
        if channel:
            if told.claimed_by != channel and not told.end:
                self._break(f"{number}: channel {channel} answers {kind} while {told}", msgid)
            told.claimed_by = 0
            if kind == _KIND.OUTCOME_KIND_RETURNED:
                if told.is_shown:
                    self._break(f"{number}: returned, and shown by the channel", msgid)
                if reason != FixedReason.RECALLED:
                    told.returned_by.add(channel)
        if kind in _ENDS:
            if channel and told.end in _END_BY_CHANNEL:
                self._break(f"{number}: two ends by channels, {told.end} and {kind}", msgid)
            told.end = told.end or kind
            told.claimed_by = 0

    def _of(self, msgid: int, number: DeviceNumber) -> _Told:
        return self._told.setdefault((msgid, number), _Told())

    def _break(self, text: str, msgid: int) -> None:
        self._broken.append(_violation(text, msgid))


def _violation(text: str, msgid: int) -> Violation:
    return Violation("hand-over", text, (msgid,))
