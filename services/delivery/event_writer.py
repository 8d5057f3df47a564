"""Writes delivery's facts: to the log first, then into the state, both in the same order.

Starts of pushes to listed devices may go the other way round, since their commands name the audience already: they are
applied at once, and appended a moment later, before everything that follows from them.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from protos.delivery.v1.delivery_pb2 import PushFact
from protos.runtime.v1.log_pb2 import Position
from services.delivery.state.delivery_state import DeliveryState
from services.domain.ids import RecordStamp
from services.domain.topics import DELIVERIES, PUSHES, decode
from services.errors import BusyError, UnavailableError
from services.log.port import Log, NewRecord, Partition, Record
from services.log.topics import Topic
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import APPENDED
from services.replica.catch_up import ends_after, read_until
from services.replica.fencing import Fencing
from services.replica.tenure import OwnerElection

MAX_UNWRITTEN = 1000
"""Upper bound of the starts that are applied and not in the log yet."""

_ROLE = "delivery"
_RETRY_MS = 500
_Applied = tuple[Record, Any]
"""A record and its message."""


class NewFact(NamedTuple):
    """A fact to be written to a device partition; of its meta at most the cause is set."""

    partition: int
    key: bytes
    message: Any


class _Unwritten(NamedTuple):
    """A fact and its record, which the log does not have yet."""

    fact: NewFact
    new_record: NewRecord


class EventWriter:
    """Appends facts and applies them to the state, one write per topic at a time, so that no fact is skipped.

    `offsets` holds the next offset of each partition that the state has not applied. Facts are written under epochs,
    which `announcements` and `begin` start.
    """

    def __init__(
        self,
        log: Log,
        state: DeliveryState,
        clock: Clock,
        offsets: dict[Partition, int] | None = None,
        election: OwnerElection | None = None,
        last: dict[Partition, Record] | None = None,
    ) -> None:
        """`offsets`: the offsets that the state has reached, which this object advances; None: `begin` gets them.
        `last`: the last records that it has applied, which this object notes."""
        self.offsets = {} if offsets is None else offsets
        self._last = {} if last is None else last
        self._log = log
        self._state = state
        self._clock = clock
        self._stamp = RecordStamp(_ROLE)
        self._fencing = Fencing(_ROLE, log.topics, state.epochs, clock)
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._election = election
        self._unwritten: list[_Unwritten] = []

    @property
    def may_apply_starts(self) -> bool:
        """Whether starts may be applied before they are in the log: not too many wait for the log, and no other process
        can own the partitions and have cancelled the pushes meanwhile."""
        return len(self._unwritten) < MAX_UNWRITTEN and (self._election is None or self._election.is_confirmed)

    @property
    def unwritten(self) -> int:
        """The number of starts that are applied and not in the log yet."""
        return len(self._unwritten)

    def announcements(self) -> list[NewRecord]:
        """Choose an epoch for each own partition; return the records that announce them, which are to be appended."""
        own = [Partition(topic.name, number) for topic in (PUSHES, DELIVERIES) for number in sorted(self._state.owned)]
        return self._fencing.announce(own)

    def begin(self, offsets: Mapping[Partition, int]) -> None:
        """Write facts from now on; the state has applied all before these offsets, announcements included.

        SupersededError: another process has announced later epochs meanwhile.
        """
        self.offsets |= offsets
        self._fencing.begin(offsets)

    async def write(self, topic: Topic, facts: Sequence[NewFact]) -> None:
        """Append the facts and apply them; retry while the log is unavailable.

        No other task runs between the application of the facts and the caller's next step. SupersededError: another
        process has taken over; no reader counts the facts, and they are not applied.
        """
        if topic is DELIVERIES:
            await self.write_starts()
        await self._write(topic, [_Unwritten(fact, self._new_record(topic, fact)) for fact in facts])

    def apply_starts(self, facts: Sequence[NewFact]) -> None:
        """Apply starts of pushes to listed devices now; the next write of any fact, or `write_starts`, appends them."""
        for fact in facts:
            new_record = self._new_record(PUSHES, fact)
            offset = self.offsets.get(Partition(PUSHES.name, fact.partition), 0)
            self._state.apply(Record(*new_record[:2], offset, *new_record[2:]), fact.message)
            self._unwritten.append(_Unwritten(fact, new_record))

    async def write_starts(self) -> None:
        """Return once all starts that are applied are in the log. SupersededError: see `write`."""
        await self._write(PUSHES, [])

    async def _write(self, topic: Topic, new: Sequence[_Unwritten]) -> None:
        async with self._locks[topic.name]:
            applied = len(self._unwritten) if topic is PUSHES else 0
            unwritten = [*self._unwritten[:applied], *new]
            if not unwritten:
                return
            facts, new_records = [each.fact for each in unwritten], [each.new_record for each in unwritten]
            offsets = await self._append(new_records)
            appended = [
                (Record(*new_record[:2], offset, *new_record[2:]), fact.message)
                for fact, new_record, offset in zip(facts, new_records, offsets, strict=True)
            ]
            others = await self._others_before(new_records, offsets)
            for record, message in sorted(appended + others, key=_offset):
                self.apply(record, message)
            del self._unwritten[:applied]
        APPENDED.labels(topic.name).inc(len(new_records))

    def apply(self, record: Record, message: Any) -> None:
        """Apply a record of the log to the state. ValueError: its content is invalid."""
        self._state.apply(record, message)
        self.skip(record)

    def skip(self, record: Record) -> None:
        """Advance the offset past the record."""
        partition = Partition(record.topic, record.partition)
        if record.offset >= self.offsets.get(partition, 0):
            self.offsets[partition] = record.offset + 1
            self._last[partition] = record

    async def _others_before(self, new_records: Sequence[NewRecord], offsets: Sequence[int]) -> list[_Applied]:
        """Return the records before these new ones, which were appended at `offsets`, that the state has not applied.

        They are records of a former process that the log stored late, which no reader counts, and own records that the
        log stored twice.
        SupersededError: there is a successor's record among them.
        """
        ends, others = ends_after(new_records, offsets), list[_Applied]()
        starts = self._fencing.gaps(new_records, offsets)
        own = {(*new_record[:2], offset) for new_record, offset in zip(new_records, offsets, strict=True) if starts}
        async with aclosing(read_until(_ROLE, self._log, starts, {p: ends[p] for p in starts})) as batches:
            async for records, _ in batches:
                for record in records:
                    self._fencing.check(record)
                    with suppress(DecodeError):
                        if record[:3] not in own:
                            others.append((record, decode(record)))
        self._fencing.advance(ends)
        return others

    async def _append(self, new_records: Sequence[NewRecord]) -> Sequence[int]:
        while True:
            try:
                return await self._log.append(new_records)
            except (BusyError, UnavailableError) as error:
                logger.warning("the log does not accept facts; trying again", role="delivery", error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    def _new_record(self, topic: Topic, fact: NewFact) -> NewRecord:
        """Return the record of a fact. An outcome's cause is the latest record of `pushes` that the state has applied:
        so every reader folds the start of a push before its outcomes, whatever the times of the records."""
        meta = fact.message.meta
        self._stamp.complete(meta, self._clock.now_ms())
        meta.epoch = self._fencing.epoch(Partition(topic.name, fact.partition))
        known = self.offsets.get(Partition(PUSHES.name, fact.partition), 0)
        if topic is DELIVERIES and known:
            meta.cause.CopyFrom(Position(topic=PUSHES.name, partition=fact.partition, offset=known - 1))
        return NewRecord(topic.name, fact.partition, fact.key, fact.message.SerializeToString())


def new_facts(facts: Iterable[PushFact]) -> list[NewFact]:
    """Return facts of pushes as they are written."""
    return [NewFact(fact.partition, str(fact.msgid).encode(), fact) for fact in facts]


def _offset(each: _Applied) -> int:
    return each[0].offset
