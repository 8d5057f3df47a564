"""A cache of the newest records of a log, so that readers that keep up need no query."""

from collections import deque
from collections.abc import Iterable, Mapping

from services.runtime.log.port import Partition, Record

_RECORD_BYTES = 300


class _Run:
    """Contiguous records of one partition; the first `dropped` of them are no longer valid."""

    __slots__ = ("dropped", "first", "records")

    def __init__(self, first: int) -> None:
        self.first = first
        self.dropped = 0
        self.records: list[Record] = []

    def drop_one(self) -> None:
        self.dropped += 1
        if self.dropped * 2 > len(self.records):
            del self.records[: self.dropped]
            self.first += self.dropped
            self.dropped = 0

    def holds(self, start: int) -> bool:
        return start - self.first >= self.dropped

    def since(self, start: int, limit: int) -> list[Record]:
        at = start - self.first
        return self.records[at : at + limit]


class RecentRecords:
    """Holds about `max_bytes` of records; the oldest over all partitions are dropped first."""

    def __init__(self, max_bytes: int = 16 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._runs: dict[Partition, _Run] = {}
        self._order: deque[tuple[_Run, int]] = deque()

    def add(self, records: Iterable[Record]) -> None:
        """Add records that were just appended; those of one partition are contiguous."""
        for record in records:
            run = self._runs.get(Partition(record.topic, record.partition))
            if run is None:
                run = self._runs[Partition(record.topic, record.partition)] = _Run(record.offset)
            run.records.append(record)
            size = len(record.key) + len(record.value) + _RECORD_BYTES
            self._order.append((run, size))
            self._bytes += size
        while self._bytes > self._max_bytes:
            run, size = self._order.popleft()
            run.drop_one()
            self._bytes -= size

    def holds(self, partition: Partition, start: int) -> bool:
        """Return whether the partition's records from the offset on are cached."""
        run = self._runs.get(partition)
        return run is not None and run.holds(start)

    def since(self, starts: Mapping[Partition, int], limit: int) -> tuple[list[Record], list[Partition]]:
        """Return at most `limit` records of the partitions whose start is cached, and those read to their end."""
        found: list[Record] = []
        exhausted: list[Partition] = []
        for partition, start in starts.items():
            remaining = limit - len(found)
            if remaining > 0 and self.holds(partition, start):
                records = self._runs[partition].since(start, remaining)
                found += records
                if len(records) < remaining:
                    exhausted.append(partition)
        return found, exhausted
