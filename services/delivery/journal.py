"""How delivery writes: facts go to the log, and once they are there into the state, with the offsets beside it."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from protos.runtime.v1.log_pb2 import Meta
from services.delivery.state import DeliveryState
from services.runtime.clock import Clock
from services.runtime.errors import UnavailableError
from services.runtime.ids import event_id
from services.runtime.log import Draft, Log, Partition, Record
from services.runtime.logs import logger
from services.runtime.metrics import APPENDED
from services.runtime.topics import Topic


class Entry(NamedTuple):
    """A fact for one device partition, without its meta."""

    topic: Topic
    partition: int
    key: bytes
    message: Any


class Journal:
    """Appends and folds. `offsets` says up to where the state has seen each partition."""

    def __init__(self, log: Log, state: DeliveryState, clock: Clock) -> None:
        self.offsets: dict[Partition, int] = {}
        self._log = log
        self._state = state
        self._clock = clock

    async def write(self, entries: Sequence[Entry], cause: Meta | None = None) -> None:
        """Return once the facts are durable and folded. While the log is away it tries again, with the same facts."""
        if not entries:
            return
        drafts = [self._draft(entry, cause) for entry in entries]
        while True:
            try:
                offsets = await self._log.append(drafts)
                break
            except UnavailableError as error:
                logger.warning("the log takes no facts; trying again", role="delivery", error=str(error))
                await asyncio.sleep(0.5)
        for entry, draft, offset in zip(entries, drafts, offsets, strict=True):
            record = Record(draft.topic, draft.partition, offset, draft.key, draft.value)
            self._state.apply(record, entry.message)
            partition = Partition(draft.topic, draft.partition)
            if offset >= 0:
                self.offsets[partition] = max(self.offsets.get(partition, 0), offset + 1)
            APPENDED.labels(draft.topic).inc()

    def _draft(self, entry: Entry, cause: Meta | None) -> Draft:
        meta = Meta(event_id=event_id(), time_ms=self._clock.now_ms(), writer="delivery")
        if cause is not None:
            meta.origin.CopyFrom(cause.origin)
        entry.message.meta.CopyFrom(meta)
        return Draft(entry.topic.name, entry.partition, entry.key, entry.message.SerializeToString())
