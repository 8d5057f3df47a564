"""The Reader port on the embedded log, and the cache of its newest records."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from services.errors import UnavailableError
from services.log.port import Partition, Record
from services.log.sqlite.file import RecordPage

# A cache of the newest records of a log, so that readers that keep up need no query.

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
        """Add records that were just appended. In each partition their offsets follow the cached ones without a gap."""
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
        """Return at most `limit` records of partitions whose start is cached, and the partitions read to their end."""
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


POLL_S = 0.1
"""Default interval at which the readers of a log that another process writes look for new records."""


class RecordSource(Protocol):
    """The part of the embedded log that its readers use."""

    @property
    def recent(self) -> RecentRecords: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def poll_s(self) -> float: ...

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...

    async def select(self, starts: Mapping[Partition, int], limit: int) -> RecordPage: ...

    def remove_reader(self, reader: "SqliteReader") -> None: ...


class SqliteReader:
    """Reads the partitions whose end it has not reached; the log notifies it when a partition has grown."""

    def __init__(self, log: RecordSource, positions: dict[Partition, int], ends: dict[Partition, int]) -> None:
        self._log = log
        self._positions = positions
        self._ends = ends
        self._behind = dict.fromkeys(p for p, start in positions.items() if start < ends[p])
        self._grown = asyncio.Event()
        self._closed = False

    @property
    def partitions(self) -> Iterable[Partition]:
        return self._positions.keys()

    def notify(self, ends: Mapping[Partition, int]) -> None:
        for partition in ends.keys() & self._positions.keys():
            self._ends[partition] = ends[partition]
            if self._positions[partition] < ends[partition]:
                self._behind[partition] = None
                self._grown.set()

    async def read(self, max_records: int = 5000) -> list[Record]:
        while not self._closed:
            if not self._behind:
                await self._wait()
                continue
            starts = {partition: self._positions[partition] for partition in self._behind}
            ends = dict(self._ends)
            page = await self._page(starts, max_records)
            self._advance(page, ends)
            if page.records:
                return page.records
        raise UnavailableError("the reader was closed")

    async def _page(self, starts: Mapping[Partition, int], limit: int) -> RecordPage:
        """Return cached records, and from the file records of the partitions that the cache does not hold.

        Where there are both, each may take half of the page, so that neither waits while the other grows.
        """
        recent = self._log.recent
        in_file = {partition: start for partition, start in starts.items() if not recent.holds(partition, start)}
        page = RecordPage(*recent.since(starts, limit // 2 if in_file else limit))
        if in_file:
            stored = await self._log.select(in_file, limit - len(page.records))
            page = RecordPage(page.records + stored.records, page.exhausted + stored.exhausted)
        return page

    async def close(self) -> None:
        self._closed = True
        self._grown.set()
        self._log.remove_reader(self)

    async def _wait(self) -> None:
        self._grown.clear()
        if self._log.read_only:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._log.poll_s):
                    await self._grown.wait()
            if not self._closed:
                self.notify(await self._log.ends(self._positions))
        else:
            await self._grown.wait()

    def _advance(self, page: RecordPage, ends: Mapping[Partition, int]) -> None:
        """Advance past the page; its partitions go behind the others. `ends`: those known before it was read."""
        reached = {Partition(r.topic, r.partition): r.offset + 1 for r in page.records}
        for partition in page.exhausted:
            reached[partition] = max(ends[partition], reached.get(partition, 0))
        for partition, position in reached.items():
            self._positions[partition] = position
            self._behind.pop(partition, None)
            if position < self._ends[partition]:
                self._behind[partition] = None
