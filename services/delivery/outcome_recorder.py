"""Records outcomes: gathers them for a few milliseconds and writes them to the log in columnar batches.

Each write is a commit of the log, which takes longer than all else that is done for an outcome. So there are at most 25
a second, and an outcome that comes alone is still written after 5 ms.
"""

import asyncio
import contextlib
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, Outcomes
from protos.registry.v1.apps_pb2 import Channel
from services.delivery.event_writer import EventWriter, NewFact
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.hand_overs import NOBODY
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import DELIVERIES
from services.process.crashpoint import Point, reached
from services.process.metrics import OUTCOMES
from services.replica.fencing import SupersededError

# Outcomes of one app in one partition as columns, the form in which they are written to the log.

REASON_CHARS = 200
"""Reasons are cut to this length."""

_ROWS_PER_RECORD = 30_000
_MAX_REASONS = 255


@dataclass(slots=True)
class OutcomeColumns:
    """One row for each outcome; `badges` holds badge + 1, or 0. It and `channels` may be shorter than the others.

    `services`: the channels whose services answered what is in the rows.
    """

    msgids: "array[int]" = field(default_factory=lambda: array("Q"))
    numbers: "array[int]" = field(default_factory=lambda: array("I"))
    kinds: "array[int]" = field(default_factory=lambda: array("B"))
    times_ms: "array[int]" = field(default_factory=lambda: array("q"))
    reason_indexes: "array[int]" = field(default_factory=lambda: array("B"))
    reasons: dict[str, int] = field(default_factory=dict)
    badges: "array[int]" = field(default_factory=lambda: array("I"))
    channels: "array[int]" = field(default_factory=lambda: array("B"))
    services: "set[Channel.ValueType]" = field(default_factory=set)
    carry_msgids: bool = False

    def add(
        self, msgid: int, number: int, kind: int, time_ms: int, reason: str, badge: int | None = None, channel: int = 0
    ) -> None:
        if channel:
            self._add_channel(channel, 1)
        if badge is not None:
            self.badges.extend(array("I", [0]) * (len(self.msgids) - len(self.badges)))
            self.badges.append(1 + badge)
        self.msgids.append(msgid)
        self.numbers.append(number)
        self.kinds.append(kind)
        self.times_ms.append(time_ms)
        self.reason_indexes.append(self._reason_index(reason[:REASON_CHARS]) if reason else 0)

    def add_many(self, msgid: int, numbers: Sequence[int], kind: int, time_ms: int, channel: int = 0) -> None:
        count = len(numbers)
        if channel:
            self._add_channel(channel, count)
        self.msgids.extend(array("Q", [msgid]) * count)
        self.numbers.extend(numbers)
        self.kinds.extend(array("B", [kind]) * count)
        self.times_ms.extend(array("q", [time_ms]) * count)
        self.reason_indexes.extend(array("B", [0]) * count)

    def batches(self, appkey: str, simulators: "Collection[Channel.ValueType]" = frozenset()) -> list[AppOutcomes]:
        """Return the rows as messages that each fit into one record; `simulators` as for `OutcomeRecorder`."""
        simulated = sorted(self.services.intersection(simulators))
        return [
            AppOutcomes(
                appkey=appkey,
                msgids=self.msgids[at : at + _ROWS_PER_RECORD].tobytes(),
                numbers=self.numbers[at : at + _ROWS_PER_RECORD].tobytes(),
                kinds=self.kinds[at : at + _ROWS_PER_RECORD].tobytes(),
                times_ms=self.times_ms[at : at + _ROWS_PER_RECORD].tobytes(),
                reason_indexes=self.reason_indexes[at : at + _ROWS_PER_RECORD].tobytes(),
                reasons=list(self.reasons),
                badges=self._filled_up(self.badges, at),
                channels=self._filled_up(self.channels, at),
                simulated=simulated,
                carry_msgids=self.carry_msgids,
            )
            for at in range(0, len(self.msgids), _ROWS_PER_RECORD)
        ]

    def _reason_index(self, reason: str) -> int:
        if reason not in self.reasons and len(self.reasons) >= _MAX_REASONS - 1:
            reason = FixedReason.OTHER
        return self.reasons.setdefault(reason, len(self.reasons) + 1)

    def _add_channel(self, channel: int, count: int) -> None:
        """Set the channel of the next rows."""
        self.services.add(Channel.ValueType(channel))
        self.channels.extend(array("B", [0]) * (len(self.msgids) - len(self.channels)))
        self.channels.extend(array("B", [channel]) * count)

    def _filled_up(self, column: "array[int]", at: int) -> bytes:
        """Return the rows of a column that may be shorter than the others; nothing where all of its rows are 0."""
        if not column:
            return b""
        some = column[at : at + _ROWS_PER_RECORD]
        return some.tobytes().ljust(column.itemsize * min(_ROWS_PER_RECORD, len(self.msgids) - at), b"\0")


MAX_ROWS = 500_000
"""Number of queued outcomes from which callers have to wait for capacity."""

_GATHER_S = 0.005
_INTERVAL_S = 0.04
_SENT = OutcomeKind.OUTCOME_KIND_SENT
_CLAIMED = OutcomeKind.OUTCOME_KIND_CLAIMED

MessageOnDevice = tuple[int, int, int]
"""Message id, partition, device number."""


@dataclass(slots=True)
class _Unwritten:
    """Records that the state does not contain yet: final outcomes, withdrawn and sent messages, claims of channels, and
    devices' reports by kind."""

    finals: set[MessageOnDevice] = field(default_factory=set)
    withdrawn: set[MessageOnDevice] = field(default_factory=set)
    sent: set[MessageOnDevice] = field(default_factory=set)
    sent_to_many: dict[tuple[int, int], BitMap] = field(default_factory=dict)
    claims: dict[tuple[int, int], BitMap] = field(default_factory=dict)
    reports: set[tuple[int, MessageOnDevice]] = field(default_factory=set)

    def has_sent(self, message: MessageOnDevice) -> bool:
        return message in self.sent or message[2] in self.sent_to_many.get(message[:2], ())

    def sent_devices(self, msgid: int, partition: int, numbers: BitMap) -> BitMap:
        if len(numbers) < len(self.sent):
            singly = BitMap(number for number in numbers if (msgid, partition, number) in self.sent)
        else:
            singly = BitMap(number for message, of, number in self.sent if (message, of) == (msgid, partition))
        return (singly | self.sent_to_many.get((msgid, partition), NOBODY)) & numbers


class OutcomeRecorder:
    """A service that writes queued outcomes to the log, and the last ones when it stops."""

    name = "delivery recorder"

    def __init__(self, events: EventWriter, simulators: "Collection[Channel.ValueType]" = frozenset()) -> None:
        """`simulators`: the channels in the place of whose services a simulator answers."""
        self._events = events
        self._simulators = simulators
        self._rows: dict[tuple[int, str], OutcomeColumns] = {}
        self._queued = _Unwritten()
        self._being_written = _Unwritten()
        self._waiters: list[asyncio.Future[None]] = []
        self._row_count = 0
        self._flush_lock = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()
        self._flush_needed = asyncio.Event()
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    def record(
        self,
        partition: int,
        appkey: str,
        msgid: int,
        number: int,
        kind: int,
        time_ms: int,
        reason: str = "",
        badge: int | None = None,
        service: "Channel.ValueType | None" = None,
        *,
        carries_msgid: bool = False,
    ) -> None:
        """Queue one outcome; `time_ms` is in milliseconds since 1970, `badge` the one that the device was sent.

        `service`: the channel whose service answered so, if one did. `carries_msgid`: the message carried its id to an
        iOS device, which may report it.
        """
        if kind == _SENT:
            self._queued.sent.add((msgid, partition, number))
        columns = self._columns(partition, appkey, 1)
        columns.add(msgid, number, kind, time_ms, reason, badge)
        columns.carry_msgids |= carries_msgid
        if service is not None:
            columns.services.add(service)

    def record_report(self, device: DeviceAddress, msgid: int, kind: int, time_ms: int) -> None:
        """Queue what a device reports of a message whose outcome does not wait for it."""
        self._queued.reports.add((kind, (msgid, device.partition, device.number)))
        self.record(device.partition, device.appkey, msgid, device.number, kind, time_ms)

    def record_claim(
        self, partition: int, appkey: str, msgid: int, numbers: BitMap, time_ms: int, channel: int
    ) -> None:
        """Queue that a channel claims the message of these devices, for which it is pending."""
        self._queued.claims[msgid, partition] = numbers | self._queued.claims.get((msgid, partition), NOBODY)
        self._columns(partition, appkey, len(numbers)).add_many(msgid, numbers.to_array(), _CLAIMED, time_ms, channel)

    def record_answer(
        self, partition: int, appkey: str, msgid: int, number: int, kind: int, time_ms: int, reason: str, channel: int
    ) -> None:
        """Queue what a channel answered about a claimed message; a receipt of the device may follow at once."""
        self._columns(partition, appkey, 1).add(msgid, number, kind, time_ms, reason, channel=channel)

    def record_many(
        self, partition: int, appkey: str, msgid: int, numbers: Sequence[int], kind: int, time_ms: int
    ) -> None:
        """Queue the same outcome for many devices."""
        if kind == _SENT:
            sent = BitMap(array("I", numbers))
            self._queued.sent_to_many[msgid, partition] = sent | self._queued.sent_to_many.get((msgid, partition), sent)
        self._columns(partition, appkey, len(numbers)).add_many(msgid, numbers, kind, time_ms)

    def record_final(
        self,
        partition: int,
        appkey: str,
        msgid: int,
        number: int,
        kind: int,
        time_ms: int,
        reason: str = "",
        badge: int | None = None,
        service: "Channel.ValueType | None" = None,
        *,
        carries_msgid: bool = False,
    ) -> None:
        """Queue a final outcome, unless one for the same message and device is queued or being written."""
        key = (msgid, partition, number)
        if key not in self._queued.finals and key not in self._being_written.finals:
            self._queued.finals.add(key)
            self.record(
                partition, appkey, msgid, number, kind, time_ms, reason, badge, service, carries_msgid=carries_msgid
            )

    def record_withdrawn(self, device: DeviceAddress, msgid: int, time_ms: int) -> None:
        """Queue that the message is dropped because the device changed its alias, unless a final outcome is unwritten.

        An acknowledgement may follow, as the message may be on its way.
        """
        if not self.has_unwritten_final(device.partition, msgid, device.number):
            self._queued.withdrawn.add((msgid, device.partition, device.number))
            self.record(
                *(device.partition, device.appkey, msgid, device.number),
                *(OutcomeKind.OUTCOME_KIND_DROPPED, time_ms, FixedReason.ALIAS_CHANGED),
            )

    def has_unwritten_final(self, partition: int, msgid: int, number: int) -> bool:
        """Whether a final outcome is queued or being written, so that the state does not show it yet."""
        key, queued, writing = (msgid, partition, number), self._queued, self._being_written
        return key in queued.finals or key in writing.finals or key in queued.withdrawn or key in writing.withdrawn

    def has_unwritten_sent(self, partition: int, msgid: int, number: int) -> bool:
        """Whether a record that the message was sent to the device is queued or being written."""
        key = (msgid, partition, number)
        return self._queued.has_sent(key) or self._being_written.has_sent(key)

    def unwritten_sent(self, partition: int, msgid: int, numbers: BitMap) -> BitMap:
        """Return the devices whose SENT outcome for the message is queued or being written."""
        queued = self._queued.sent_devices(msgid, partition, numbers)
        return queued | self._being_written.sent_devices(msgid, partition, numbers)

    @property
    def has_unwritten_claims(self) -> bool:
        """Whether any claim is queued or being written."""
        return bool(self._queued.claims or self._being_written.claims)

    def unwritten_claims(self, partition: int, msgid: int) -> BitMap:
        """Return the devices for which a claim of the message is queued or being written."""
        key, queued, writing = (msgid, partition), self._queued.claims, self._being_written.claims
        return queued.get(key, NOBODY) | writing.get(key, NOBODY) if queued or writing else NOBODY

    def has_unwritten_report(self, partition: int, msgid: int, number: int, kind: int) -> bool:
        """Whether the device's report of this kind on the message is queued or being written."""
        key = kind, (msgid, partition, number)
        return key in self._queued.reports or key in self._being_written.reports

    async def wait_capacity(self) -> None:
        """Return once fewer than MAX_ROWS outcomes are queued; every source of outcomes waits here."""
        await self._has_capacity.wait()

    async def wait_recorded(self) -> None:
        """Return once the next regular flush has written everything queued so far to the log and to the state."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._flush_needed.set()
        await waiter

    def flush_soon(self) -> None:
        """Have the starts that are applied, and the outcomes, written by the next regular flush."""
        self._flush_needed.set()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        loop = asyncio.get_running_loop()
        earliest = loop.time()
        try:
            while True:
                await self._flush_needed.wait()
                await asyncio.sleep(max(_GATHER_S, earliest - loop.time()))
                earliest = loop.time() + _INTERVAL_S
                await self.flush()
        finally:
            with contextlib.suppress(SupersededError):  # gateways hand in again what was not confirmed
                await self.flush()

    async def flush(self) -> None:
        """Write everything queued so far and apply it to the state; a cancelled caller does not cancel the write."""
        task = asyncio.create_task(self._flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        await asyncio.shield(task)

    async def _flush(self) -> None:
        async with self._flush_lock:
            rows, self._rows = self._rows, {}
            waiters, self._waiters = self._waiters, []
            self._being_written, self._queued = self._queued, _Unwritten()
            self._flush_needed.clear()
            if rows:
                reached(Point.OUTCOMES_GATHERED)
            await self._events.write(
                DELIVERIES,
                [
                    NewFact(partition, appkey.encode(), DeliveryFact(outcomes=Outcomes(apps=[batch])))
                    for (partition, appkey), columns in rows.items()
                    for batch in columns.batches(appkey, self._simulators)
                ],
            )
            if rows:
                reached(Point.OUTCOMES_APPENDED)
            self._being_written = _Unwritten()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._row_count -= sum(len(columns.msgids) for columns in rows.values())
            if self._row_count < MAX_ROWS:
                self._has_capacity.set()
            _count_kinds(rows.values())

    def _columns(self, partition: int, appkey: str, new_rows: int) -> OutcomeColumns:
        self._row_count += new_rows
        if self._row_count >= MAX_ROWS:
            self._has_capacity.clear()
        self._flush_needed.set()
        columns = self._rows.get((partition, appkey))
        if columns is None:
            columns = self._rows[partition, appkey] = OutcomeColumns()
        return columns


def _count_kinds(rows: Iterable[OutcomeColumns]) -> None:
    kinds = b"".join(columns.kinds for columns in rows)
    counts = numpy.bincount(numpy.frombuffer(kinds, "u1"))
    for kind in numpy.flatnonzero(counts).tolist():
        name = OutcomeKind.Name(OutcomeKind.ValueType(kind)).removeprefix("OUTCOME_KIND_").lower()
        OUTCOMES.labels(name).inc(int(counts[kind]))
