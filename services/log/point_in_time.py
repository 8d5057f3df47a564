"""The event log as of an earlier moment, for replays."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from google.protobuf.message import DecodeError

from services.errors import ConflictError
from services.log.decoding import decode
from services.log.port import Log, NewRecord, Partition, Reader, Record
from services.log.topics import Topics

Ends = Mapping[Partition, int]


async def ends_at(log: Log, ends: Ends, moment_ms: int, on_batch: Callable[[int], None]) -> dict[Partition, int]:
    """Return the end of each partition at the moment: the offset of its first later record, at most `ends`."""
    found: dict[Partition, int] = {}
    reached = {partition: 0 for partition, end in ends.items() if end}
    while reached:
        reader = await log.open(reached)
        try:
            while reached.keys().isdisjoint(found):
                records = await reader.read()
                on_batch(len(records))
                _find_ends(log.topics, records, reached, ends, moment_ms, found)
        finally:
            await reader.close()
        reached = {partition: offset for partition, offset in reached.items() if partition not in found}
    return {**ends, **found}


def _find_ends(
    topics: Topics,
    records: Sequence[Record],
    reached: dict[Partition, int],
    ends: Ends,
    moment_ms: int,
    found: dict[Partition, int],
) -> None:
    for record in records:
        partition = Partition(record.topic, record.partition)
        if partition in found:
            continue
        if record.offset >= ends[partition] or time_ms(topics, record) > moment_ms:
            found[partition] = min(record.offset, ends[partition])
        elif record.offset + 1 == ends[partition]:
            found[partition] = ends[partition]
        reached[partition] = record.offset + 1


def time_ms(topics: Topics, record: Record) -> int:
    """Return the record's time in milliseconds since 1970; 0 if it cannot be decoded."""
    try:
        found: int = decode(topics, record).meta.time_ms
    except DecodeError:
        return 0
    return found


async def until_ready(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a service until it is ready, then stop it."""
    ready = asyncio.Event()
    running = asyncio.ensure_future(run(ready))
    waiting = asyncio.ensure_future(ready.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


class PointInTimeLog:
    """A read-only log that ends at `ends`. The topics in `apart` are read from and appended to the log `other`."""

    def __init__(self, log: Log, ends: Ends, apart: Iterable[str], other: Log) -> None:
        self._log = log
        self.topics = log.topics
        self.identity = log.identity
        self._ends = ends
        self._apart = frozenset(apart)
        self._other = other

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if not self._apart.issuperset(new_record.topic for new_record in new_records):
            raise ConflictError("nothing can be appended to the past")
        return await self._other.append(new_records)

    def stored(self, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        return self._other.stored(new_records)

    async def check_writable(self) -> None:
        await self._log.check_writable()

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.begins(partitions)

    async def unarchived_from(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.unarchived_from(partitions)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        wanted = list(partitions)
        there = await self._other.ends(partition for partition in wanted if partition.topic in self._apart)
        return {partition: self._ends.get(partition, 0) for partition in wanted} | there

    async def open(self, starts: Mapping[Partition, int]) -> "_PointInTimeReader":
        ends = await self.ends(starts)
        here = {p: start for p, start in starts.items() if p.topic not in self._apart and start < ends[p]}
        there = {p: start for p, start in starts.items() if p.topic in self._apart and start < ends[p]}
        readers = [(await log.open(some), set(some)) for log, some in ((self._other, there), (self._log, here)) if some]
        return _PointInTimeReader(readers, ends)

    async def last(self, partition: Partition) -> Record | None:
        end = (await self.ends([partition]))[partition]
        if end == 0:
            return None
        reader = await self.open({partition: end - 1})
        try:
            return (await reader.read())[-1]
        finally:
            await reader.close()

    async def close(self) -> None:
        """Do nothing: the caller closes both logs."""


class _PointInTimeReader:
    """Reads several logs one after the other, each up to the ends."""

    def __init__(self, readers: Sequence[tuple[Reader, set[Partition]]], ends: Ends) -> None:
        self._readers = readers
        self._ends = ends

    async def read(self, max_records: int = 5000) -> list[Record]:
        for reader, behind in self._readers:
            while behind:
                records = await reader.read(max_records)
                earlier = [r for r in records if r.offset < self._ends[Partition(r.topic, r.partition)]]
                for record in records:
                    partition = Partition(record.topic, record.partition)
                    if record.offset + 1 >= self._ends[partition]:
                        behind.discard(partition)
                if earlier:
                    return earlier
        await asyncio.Event().wait()
        return []

    async def close(self) -> None:
        for reader, _ in self._readers:
            await reader.close()


async def offsets_at(log: Log, partitions: Iterable[Partition], moment_ms: int) -> dict[Partition, int]:
    """Return the offset of each partition's first record of the moment or later, or its end; found by halving.

    The times of a partition rise but for the differences of its writers' clocks: the answer may be off by as much.
    """
    wanted = list(partitions)
    low, high = await log.begins(wanted), await log.ends(wanted)
    while middle := {p: (low[p] + high[p]) // 2 for p in wanted if low[p] < high[p]}:
        for partition, record in (await _records_from(log, middle)).items():
            if time_ms(log.topics, record) < moment_ms:
                low[partition] = record.offset + 1
            else:
                high[partition] = middle[partition]
    return low


async def _records_from(log: Log, offsets: Mapping[Partition, int]) -> dict[Partition, Record]:
    """Return the first record of each partition at or behind an offset before its end.

    A reader is opened anew once it brings nothing, so few records are read of a partition with many behind the offset.
    """
    found: dict[Partition, Record] = {}
    while missing := {partition: offset for partition, offset in offsets.items() if partition not in found}:
        reader = await log.open(missing)
        try:
            before = -1
            while before < len(found) < len(offsets):
                before = len(found)
                for record in await reader.read(len(missing)):
                    found.setdefault(Partition(record.topic, record.partition), record)
        finally:
            await reader.close()
    return found
