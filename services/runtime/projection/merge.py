"""Partitions of the log in one order of time, in bounded memory: for a fold that wants causes before effects."""

import heapq
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from services.runtime.log.decoding import decode
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition, Reader, Record
from services.runtime.process.retries import retry_until_available

_A_LINE = 200
_A_BATCH = 1000


class TimedRecord(NamedTuple):
    """A record, what is in it (None where that cannot be understood), and when it was made."""

    record: Record
    message: Any
    time_ms: int


class MergedReader:
    """Reads partitions up to their ends: in each the order of the log, between them that of the records' times.

    Within a partition time never goes back, though a clock was set back. Topics in `ahead_ms` are read as if their
    records were older by so much, because clocks differ. A record never comes before the one that its meta names as its
    cause, whatever the times say.
    """

    def __init__(
        self,
        log: Log,
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        ahead_ms: Mapping[str, int],
    ) -> None:
        self._lines = {
            partition: _PartitionCursor(log, partition, starts.get(partition, 0), end, ahead_ms.get(partition.topic, 0))
            for partition, end in ends.items()
        }

    async def batches(self) -> AsyncIterator[list[TimedRecord]]:
        """All records, some at a time."""
        batch: list[TimedRecord] = []
        order = [(line.place, partition) for partition, line in self._lines.items() if await line.fill()]
        heapq.heapify(order)
        while order:
            place, partition = heapq.heappop(order)
            line = self._lines[partition]
            if line.waiting and line.place == place:
                batch += await self._causes(line.waiting[0].message)
                batch.append(line.take())
            if await line.fill():
                heapq.heappush(order, (line.place, partition))
            if len(batch) >= _A_BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    async def _causes(self, message: Any) -> list[TimedRecord]:
        """What has to come before, because the message follows from it."""
        taken: list[TimedRecord] = []
        if message is not None:
            cause = message.meta.cause
            line = self._lines.get(Partition(cause.topic, cause.partition))
            while line is not None and line.next <= cause.offset and await line.fill():
                taken.append(line.take())
        return taken

    async def close(self) -> None:
        for line in self._lines.values():
            await line.close()


class _PartitionCursor:
    """One partition; a few of its records wait in memory."""

    def __init__(self, log: Log, partition: Partition, start: int, end: int, ahead_ms: int) -> None:
        self.waiting: deque[TimedRecord] = deque()
        self.next = start
        self._log = log
        self._partition = partition
        self._read = start
        self._end = end
        self._ahead_ms = ahead_ms
        self._time_ms = 0
        self._reader: Reader | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Where its first record stands among those of all lines; at the same time, those that are ahead go first."""
        return self.waiting[0].time_ms - self._ahead_ms, -self._ahead_ms

    async def fill(self) -> bool:
        """Have a record wait; False at the end."""
        while not self.waiting and self._read < self._end:
            if self._reader is None:
                self._reader = await self._opened()
            for record in await self._more(self._reader):
                self._read = record.offset + 1
                if record.offset < self._end:
                    self.waiting.append(self._dated(record))
        return bool(self.waiting)

    async def _opened(self) -> Reader:
        start = {self._partition: self._read}
        return await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(start), topic=self._partition.topic)

    async def _more(self, reader: Reader) -> list[Record]:
        return await retry_until_available(LOG_UNAVAILABLE, lambda: reader.read(_A_LINE), topic=self._partition.topic)

    def take(self) -> TimedRecord:
        dated = self.waiting.popleft()
        self.next = dated.record.offset + 1
        return dated

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    def _dated(self, record: Record) -> TimedRecord:
        try:
            message = decode(self._log.topics, record)
        except DecodeError:
            return TimedRecord(record, None, self._time_ms)
        self._time_ms = max(self._time_ms, message.meta.time_ms)
        return TimedRecord(record, message, self._time_ms)
