"""Ingests the outcomes of one app ahead of a backlog of other apps' outcomes.

Reading the log and picking out one app's records is much faster than storing all of them. So the wait of an app with
few outcomes depends on how fast the log is read, not on how long the outcomes of other apps take to be stored.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from analytics.ingestion.batch_writer import BatchWriter
from analytics.store.offsets import Batch, Range
from services.runtime.log.port import Log, Partition, Record

MAX_ROWS = 200_000
"""Outcomes of an app that are ingested ahead at once; an app with more waits for their turn."""

MAX_APPS = 1_000
"""Apps whose positions are remembered; the records of one that was forgotten are read once more, and stored once."""

_MAX_RECORDS = 5_000


class LookAhead:
    """Looks for one app's outcomes at a time, from the ingestion's position to a later one."""

    def __init__(self, log: Log, writer: BatchWriter, max_rows: int = MAX_ROWS, max_apps: int = MAX_APPS) -> None:
        self._log = log
        self._writer = writer
        self._max_rows = max_rows
        self._max_apps = max_apps
        self._lock = asyncio.Lock()
        self._reached: dict[str, dict[Partition, int]] = {}

    async def ingest(self, appkey: str, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> bool:
        """Ingest the app's outcomes between the offsets. Return False, and ingest nothing, if they are too many."""
        async with self._lock:
            reached = self._reached.get(appkey, {})
            firsts = {partition: max(start, reached.get(partition, 0)) for partition, start in starts.items()}
            batch = {p: Range(first, ends[p]) for p, first in sorted(firsts.items()) if first < ends[p]}
            if batch and not await self._writer.write_ahead(appkey, self._pages(appkey, batch), batch, self._max_rows):
                return False
            self._reached.pop(appkey, None)
            if len(self._reached) >= self._max_apps:
                del self._reached[next(iter(self._reached))]
            self._reached[appkey] = {**reached, **{partition: range_.next for partition, range_ in batch.items()}}
            return True

    async def _pages(self, appkey: str, batch: Batch) -> AsyncIterator[Sequence[Record]]:
        """Yield the records of the ranges that contain the bytes of the appkey."""
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
                    if needle in record.value and record.offset < batch[Partition(record.topic, record.partition)].next
                ]
        finally:
            await reader.close()
