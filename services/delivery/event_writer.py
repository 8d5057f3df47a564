"""Writes delivery's facts: to the log first, then into the state."""

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from services.delivery.state.delivery_state import DeliveryState
from services.domain.meta import RecordStamp
from services.domain.topics import decode
from services.runtime.errors import BusyError, UnavailableError
from services.runtime.log.port import LOG_UNAVAILABLE, Log, NewRecord, Partition, Record
from services.runtime.log.topics import Topic
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APPENDED
from services.runtime.process.retries import retry_until_available

_RETRY_MS = 500


class NewFact(NamedTuple):
    """A fact to be written to a device partition; of its meta at most the cause is set."""

    partition: int
    key: bytes
    message: Any


class EventWriter:
    """Appends facts and applies them to the state, one write per topic at a time, so that none is skipped.

    `offsets` holds the next offset of each partition that the state has not applied.
    """

    def __init__(self, log: Log, state: DeliveryState, clock: Clock) -> None:
        self.offsets: dict[Partition, int] = {}
        self._log = log
        self._state = state
        self._clock = clock
        self._stamp = RecordStamp("delivery")
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def write(self, topic: Topic, facts: Sequence[NewFact]) -> None:
        """Append the facts and apply them; retry while the log is unavailable.

        No other task runs between the application of the facts and the caller's next step.
        """
        if not facts:
            return
        new_records = [self._new_record(topic, fact) for fact in facts]
        async with self._locks[topic.name]:
            offsets = await self._append(new_records)
            own: dict[Partition, list[tuple[Record, Any]]] = {}
            for fact, new_record, offset in zip(facts, new_records, offsets, strict=True):
                record = Record(topic.name, new_record.partition, offset, new_record.key, new_record.value)
                own.setdefault(Partition(topic.name, new_record.partition), []).append((record, fact.message))
            missed = [each for partition, records in own.items() for each in await self._missed(partition, records)]
            for record, message in heapq.merge(missed, *own.values(), key=_place):
                self._apply_or_skip(record, message)
        APPENDED.labels(topic.name).inc(len(new_records))

    def apply(self, record: Record, message: Any) -> None:
        """Apply a record of the log to the state. ValueError: its content is invalid."""
        self._state.apply(record, message)
        self.skip(record)

    def skip(self, record: Record) -> None:
        """Advance the offset past the record."""
        partition = Partition(record.topic, record.partition)
        self.offsets[partition] = max(self.offsets.get(partition, 0), record.offset + 1)

    def _apply_or_skip(self, record: Record, message: Any) -> None:
        try:
            self.apply(record, message)
        except ValueError as error:
            logger.error("delivery skips a record", topic=record.topic, offset=record.offset, error=str(error))
            self.skip(record)

    async def _missed(self, partition: Partition, own: Sequence[tuple[Record, Any]]) -> list[tuple[Record, Any]]:
        """Return the records beside its own up to these that this process has not applied, in the order of the log.

        A process that was killed may have sent records that Kafka stored only after this one had read the log, and an
        append without an answer is stored twice. A replay folds them, so the live state has to.
        """
        start, end = self.offsets.get(partition, 0), own[-1][0].offset + 1
        if end - start <= len(own):
            return []
        offsets = {record.offset for record, _ in own}
        found = await self._read(partition, start, end)
        missed = [(record, _decoded(record)) for record in found if record.offset not in offsets]
        logger.warning("applies records of an earlier append too", partition=str(partition), records=len(missed))
        return missed

    async def _read(self, partition: Partition, start: int, end: int) -> list[Record]:
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open({partition: start}))
        try:
            records: list[Record] = []
            while not records or records[-1].offset < end - 1:
                records += await retry_until_available(LOG_UNAVAILABLE, reader.read)
            return [record for record in records if record.offset < end]
        finally:
            await reader.close()

    async def _append(self, new_records: Sequence[NewRecord]) -> Sequence[int]:
        while True:
            try:
                return await self._log.append(new_records)
            except (BusyError, UnavailableError) as error:
                logger.warning("the log does not accept facts; trying again", role="delivery", error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    def _new_record(self, topic: Topic, fact: NewFact) -> NewRecord:
        self._stamp.complete(fact.message.meta, self._clock.now_ms())
        return NewRecord(topic.name, fact.partition, fact.key, fact.message.SerializeToString())


def _decoded(record: Record) -> Any:
    try:
        return decode(record)
    except DecodeError:
        return None


def _place(applied: tuple[Record, Any]) -> tuple[int, int]:
    record, _ = applied
    return record.partition, record.offset
