"""Reading partitions so that causes come before their effects: merged by the records' times, or as records come."""

import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from services.log.decoding import decode
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Reader, Record
from services.log.topics import Topics
from services.process.retries import retry_until_available

_READ_RECORDS = 200
_BATCH_RECORDS = 1000


class DecodedRecord(NamedTuple):
    """A record and its envelope, None where it cannot be decoded."""

    record: Record
    message: Any


class TimedRecord(NamedTuple):
    """A record, its envelope (None where it cannot be decoded), and its time."""

    record: Record
    message: Any
    time_ms: int


class MergedReader:
    """Reads partitions up to their ends: each in the order of the log, all together in the order of the records' times.

    Within a partition, time never decreases, also when a clock was set back. Records of topics in `ahead_ms` count as
    older by that time, because clocks differ. A record never comes before the cause that its meta names, nor that cause
    before its own, whatever their times.
    """

    def __init__(
        self,
        log: Log,
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        ahead_ms: Mapping[str, int],
    ) -> None:
        self._cursors = {
            partition: _PartitionCursor(log, partition, starts.get(partition, 0), end, ahead_ms.get(partition.topic, 0))
            for partition, end in ends.items()
        }

    async def batches(self) -> AsyncIterator[list[TimedRecord]]:
        """Yield all records in batches."""
        batch: list[TimedRecord] = []
        order = [(cursor.sort_key, partition) for partition, cursor in self._cursors.items() if await cursor.fill()]
        heapq.heapify(order)
        while order:
            sort_key, partition = heapq.heappop(order)
            cursor = self._cursors[partition]
            if cursor.waiting and cursor.sort_key == sort_key:
                batch += await self._take(cursor)
            if await cursor.fill():
                heapq.heappush(order, (cursor.sort_key, partition))
            if len(batch) >= _BATCH_RECORDS:
                yield batch
                batch = []
        if batch:
            yield batch

    async def _take(self, cursor: "_PartitionCursor") -> list[TimedRecord]:
        """Take the cursor's first record, behind all records up to its cause, each of these behind its own cause."""
        timed = cursor.take()
        taken: list[TimedRecord] = []
        if timed.message is not None:
            cause = timed.message.meta.cause
            of_cause = self._cursors.get(Partition(cause.topic, cause.partition))
            while of_cause is not None and of_cause.next <= cause.offset and await of_cause.fill():
                taken += await self._take(of_cause)
        return [*taken, timed]

    async def close(self) -> None:
        for cursor in self._cursors.values():
            await cursor.close()


class _PartitionCursor:
    """Reads one partition; a few of its records wait in memory."""

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
    def sort_key(self) -> tuple[int, int]:
        """Sort key of the first waiting record; at equal times, the topic further ahead comes first."""
        return self.waiting[0].time_ms - self._ahead_ms, -self._ahead_ms

    async def fill(self) -> bool:
        """Read until a record waits; return False at the end of the partition."""
        while not self.waiting and self._read < self._end:
            if self._reader is None:
                self._reader = await self._opened()
            for record in await self._more(self._reader):
                self._read = record.offset + 1
                if record.offset < self._end:
                    self.waiting.append(self._timed(record))
        return bool(self.waiting)

    async def _opened(self) -> Reader:
        start = {self._partition: self._read}
        return await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(start), topic=self._partition.topic)

    async def _more(self, reader: Reader) -> list[Record]:
        return await retry_until_available(
            LOG_UNAVAILABLE, lambda: reader.read(_READ_RECORDS), topic=self._partition.topic
        )

    def take(self) -> TimedRecord:
        timed = self.waiting.popleft()
        self.next = timed.record.offset + 1
        return timed

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    def _timed(self, record: Record) -> TimedRecord:
        try:
            message = decode(self._log.topics, record)
        except DecodeError:
            return TimedRecord(record, None, self._time_ms)
        self._time_ms = max(self._time_ms, message.meta.time_ms)
        return TimedRecord(record, message, self._time_ms)


class CausalOrder:
    """Puts records in order as they are read: each behind the cause that its meta names, partitions in their order.

    A record waits until its cause has been read; `held_bytes` is the size of the waiting records. Causes before the
    `starts` and causes in other partitions count as read.
    """

    def __init__(self, topics: Topics, starts: Mapping[Partition, int]) -> None:
        self.held_bytes = 0
        self._topics = topics
        self._next = dict(starts)
        self._held: dict[Partition, deque[DecodedRecord]] = {partition: deque() for partition in starts}

    def put(self, records: Iterable[Record]) -> list[DecodedRecord]:
        """Return the due records: of these, and of earlier ones that waited for them."""
        for record in records:
            try:
                message = decode(self._topics, record)
            except DecodeError:
                message = None
            self._held[Partition(record.topic, record.partition)].append(DecodedRecord(record, message))
            self.held_bytes += len(record.value)
        due: list[DecodedRecord] = []
        before = -1
        while before < len(due):
            before = len(due)
            for held in self._held.values():
                while held and self._is_due(held[0]):
                    due.append(self._taken(held))
        return due

    def rest(self) -> list[DecodedRecord]:
        """Take out all records that wait: the log does not hold their causes."""
        return [self._taken(held) for held in self._held.values() for _ in range(len(held))]

    def _is_due(self, decoded: DecodedRecord) -> bool:
        if decoded.message is None:
            return True
        cause = decoded.message.meta.cause
        return bool(cause.offset < self._next.get(Partition(cause.topic, cause.partition), cause.offset + 1))

    def _taken(self, held: deque[DecodedRecord]) -> DecodedRecord:
        decoded = held.popleft()
        record = decoded.record
        self.held_bytes -= len(record.value)
        self._next[Partition(record.topic, record.partition)] = record.offset + 1
        return decoded
