"""How delivery writes: facts go to the log, and once they are there into the state, with the offsets beside it."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from services.delivery.state import DeliveryState
from services.runtime.clock import Clock
from services.runtime.errors import BusyError, UnavailableError
from services.runtime.ids import event_id
from services.runtime.log import Draft, Log, Partition, Record
from services.runtime.logs import logger
from services.runtime.metrics import APPENDED
from services.runtime.topics import Topic

_RETRY_MS = 500


class Entry(NamedTuple):
    """A fact for one device partition; its meta holds at most the cause."""

    partition: int
    key: bytes
    message: Any


class Journal:
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
        drafts = [self._draft(topic, entry) for entry in entries]
        async with self._turns[topic.name]:
            offsets = await self._append(drafts)
            for entry, draft, offset in zip(entries, drafts, offsets, strict=True):
                self.fold(Record(draft.topic, draft.partition, offset, draft.key, draft.value), entry.message)
        APPENDED.labels(topic.name).inc(len(drafts))

    def fold(self, record: Record, message: Any) -> None:
        """Fold a record that is in the log; one whose place is not known is folded again after a restart."""
        self._state.apply(record, message)
        self.pass_by(record)

    def pass_by(self, record: Record) -> None:
        """Note that the state has seen the record."""
        if record.offset >= 0:
            partition = Partition(record.topic, record.partition)
            self.offsets[partition] = max(self.offsets.get(partition, 0), record.offset + 1)

    async def _append(self, drafts: Sequence[Draft]) -> Sequence[int]:
        while True:
            try:
                return await self._log.append(drafts)
            except (BusyError, UnavailableError) as error:
                logger.warning("the log takes no facts; trying again", role="delivery", error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    def _draft(self, topic: Topic, entry: Entry) -> Draft:
        meta = entry.message.meta
        meta.event_id = event_id()
        meta.time_ms = self._clock.now_ms()
        meta.writer = "delivery"
        return Draft(topic.name, entry.partition, entry.key, entry.message.SerializeToString())
