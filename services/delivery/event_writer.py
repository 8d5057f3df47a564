"""How delivery writes: facts go to the log, and once they are there into the state, with the offsets beside it."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from services.delivery.state.delivery_state import DeliveryState
from services.domain.ids import event_id
from services.runtime.errors import BusyError, UnavailableError
from services.runtime.log.port import Log, NewRecord, Partition, Record
from services.runtime.log.topics import Topic
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APPENDED

_RETRY_MS = 500


class Entry(NamedTuple):
    """A fact for one device partition; its meta holds at most the cause."""

    partition: int
    key: bytes
    message: Any


class EventWriter:
    """Appends and folds, one write to a topic at a time: what the state has seen of a partition has no gaps.

    `offsets` says up to where that is.
    """

    def __init__(self, log: Log, state: DeliveryState, clock: Clock) -> None:
        self.offsets: dict[Partition, int] = {}
        self._log = log
        self._state = state
        self._clock = clock
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def write(self, topic: Topic, entries: Sequence[Entry]) -> None:
        """Return once the facts are durable and folded, all at one moment: nothing else runs between that and the
        caller's next step. While the log is away it tries again, with the same facts."""
        if not entries:
            return
        new_records = [self._draft(topic, entry) for entry in entries]
        async with self._turns[topic.name]:
            offsets = await self._append(new_records)
            for entry, new_record, offset in zip(entries, new_records, offsets, strict=True):
                self.fold(
                    Record(new_record.topic, new_record.partition, offset, new_record.key, new_record.value),
                    entry.message,
                )
        APPENDED.labels(topic.name).inc(len(new_records))

    def fold(self, record: Record, message: Any) -> None:
        """Fold a record that is in the log; one whose place is not known is folded again after a restart."""
        self._state.apply(record, message)
        self.pass_by(record)

    def pass_by(self, record: Record) -> None:
        """Note that the state has seen the record."""
        if record.offset >= 0:
            partition = Partition(record.topic, record.partition)
            self.offsets[partition] = max(self.offsets.get(partition, 0), record.offset + 1)

    async def _append(self, new_records: Sequence[NewRecord]) -> Sequence[int]:
        while True:
            try:
                return await self._log.append(new_records)
            except (BusyError, UnavailableError) as error:
                logger.warning("the log takes no facts; trying again", role="delivery", error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    def _draft(self, topic: Topic, entry: Entry) -> NewRecord:
        meta = entry.message.meta
        meta.event_id = event_id()
        meta.time_ms = self._clock.now_ms()
        meta.writer = "delivery"
        return NewRecord(topic.name, entry.partition, entry.key, entry.message.SerializeToString())
