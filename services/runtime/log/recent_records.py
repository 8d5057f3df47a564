"""The newest records of a log in memory, so that readers that keep up need no query."""

from collections import deque
from collections.abc import Iterable, Mapping

from services.runtime.log.port import Partition, Record

_RECORD_BYTES = 300


class _Run:
    """Records of one partition without a gap; the first `gone` of them were given up."""

    __slots__ = ("first", "gone", "records")

    def __init__(self, first: int) -> None:
        self.first = first
        self.gone = 0
        self.records: list[Record] = []

    def drop_one(self) -> None:
        self.gone += 1
        if self.gone * 2 > len(self.records):
            del self.records[: self.gone]
            self.first += self.gone
            self.gone = 0

    def since(self, start: int, limit: int) -> list[Record] | None:
        at = start - self.first
        return self.records[at : at + limit] if at >= self.gone else None


class RecentRecords:
    """Keeps about `max_bytes`; what came first is given up first, over all partitions."""

    def __init__(self, max_bytes: int = 16 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._runs: dict[Partition, _Run] = {}
        self._order: deque[tuple[_Run, int]] = deque()

    def add(self, records: Iterable[Record]) -> None:
        """Note records just appended; those of one partition follow each other."""
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

    def since(self, starts: Mapping[Partition, int], limit: int) -> tuple[list[Record], list[Partition]]:
        """At most `limit` records, of the partitions whose start is still kept, and which of those were read out."""
        found: list[Record] = []
        exhausted: list[Partition] = []
        for partition, start in starts.items():
            run = self._runs.get(partition)
            room = limit - len(found)
            records = run.since(start, room) if run is not None and room > 0 else None
            if records is not None:
                found += records
                if len(records) < room:
                    exhausted.append(partition)
        return found, exhausted
