"""Writes delivery's facts: to the log first, then into the state."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from services.delivery.state.delivery_state import DeliveryState
from services.domain.meta import RecordStamp
from services.runtime.errors import BusyError, UnavailableError
from services.runtime.log.port import Log, NewRecord, Partition, Record
from services.runtime.log.topics import Topic
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APPENDED

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
            for fact, new_record, offset in zip(facts, new_records, offsets, strict=True):
                self.apply(
                    Record(new_record.topic, new_record.partition, offset, new_record.key, new_record.value),
                    fact.message,
                )
        APPENDED.labels(topic.name).inc(len(new_records))

    def apply(self, record: Record, message: Any) -> None:
        """Apply a record of the log to the state. ValueError: its content is invalid."""
        self._state.apply(record, message)
        self.skip(record)

    def skip(self, record: Record) -> None:
        """Advance the offset past the record."""
        partition = Partition(record.topic, record.partition)
        self.offsets[partition] = max(self.offsets.get(partition, 0), record.offset + 1)

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
