"""Ingests the outcomes of one app ahead of a backlog of other apps' outcomes.

Reading the log and picking out one app's records is much faster than storing all of them. So the wait of an app with
few outcomes depends on how fast the log is read, not on how long the outcomes of other apps take to be stored.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from analytics.ingestion.batch_writer import BatchWriter
from analytics.store.offsets import Batch, Range
from services.log.port import Log, Partition, Record
from services.replica.fencing import ANNOUNCEMENT_KEY

MAX_ROWS = 200_000
"""Upper bound of the outcomes ingested ahead; an app with more waits until ingestion reaches them."""

MAX_APPS = 1_000
"""Apps whose positions are remembered; the records of one that was forgotten are read once more, and stored once."""

_MAX_RECORDS = 5_000


class _Reached(NamedTuple):
    """How far the outcomes of an app are ingested: the next offsets, and the highest epochs before them."""

    offsets: Mapping[Partition, int]
    epochs: Mapping[Partition, int]


class LookAhead:
    """Looks for one app's outcomes at a time, from the ingestion's position to a later one."""

    def __init__(self, log: Log, writer: BatchWriter, max_rows: int = MAX_ROWS, max_apps: int = MAX_APPS) -> None:
        self._log = log
        self._writer = writer
        self._max_rows = max_rows
        self._max_apps = max_apps
        self._lock = asyncio.Lock()
        self._reached: dict[str, _Reached] = {}

    async def ingest(self, appkey: str, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> bool:
        """Ingest the app's outcomes between the offsets. Return False, and ingest nothing, if they are too many."""
        async with self._lock:
            offsets, highest = self._reached.get(appkey, _Reached({}, {}))
            firsts = {partition: max(start, offsets.get(partition, 0)) for partition, start in starts.items()}
            batch = {p: Range(first, ends[p]) for p, first in sorted(firsts.items()) if first < ends[p]}
            epochs = await self._writer.epochs()
            for partition, epoch in highest.items():
                epochs.note(partition, epoch)
            pages = self._pages(appkey, batch)
            if batch and not await self._writer.write_ahead(appkey, pages, batch, epochs, self._max_rows):
                return False
            self._reached.pop(appkey, None)
            if len(self._reached) >= self._max_apps:
                del self._reached[next(iter(self._reached))]
            following = {partition: range_.next for partition, range_ in batch.items()}
            self._reached[appkey] = _Reached({**offsets, **following}, epochs.highest())
            return True

    async def _pages(self, appkey: str, batch: Batch) -> AsyncIterator[Sequence[Record]]:
        """Yield the ranges' records that contain the bytes of the appkey, and the announcements of epochs."""
        needle = appkey.encode()
        reader = await self._log.open({partition: range_.first for partition, range_ in batch.items()})
        try:
            unread = {partition: range_.next for partition, range_ in batch.items()}
            while unread:
                records = await reader.read(_MAX_RECORDS)
                for record in records:
                    partition = Partition(record.topic, record.partition)
                    if record.offset + 1 >= unread.get(partition, record.offset):
                        unread.pop(partition, None)
                yield [
                    record
                    for record in records
                    if (needle in record.value or record.key.startswith(ANNOUNCEMENT_KEY))
                    and record.offset < batch[Partition(record.topic, record.partition)].next
                ]
        finally:
            await reader.close()
