"""Batches stay within their limits however much one read returns, and at most one read is buffered beside a batch."""

import asyncio
from collections.abc import Sequence

import pytest

from analytics.ingestion import batch_reader
from analytics.ingestion.batch_reader import BatchReader, IngestionLimits
from services.domain.topics import DELIVERIES, PUSH_COMMANDS
from services.log.port import NewRecord, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog

PARTITIONS = [Partition(PUSH_COMMANDS.name, 0), *(Partition(DELIVERIES.name, number) for number in range(3))]


class CountingReader:
    """A log reader that counts the records it has returned."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.given = 0
        self.reads = 0

    async def read(self, max_records: int = 5000) -> list[Record]:
        records = await self._reader.read(max_records)
        self.given += len(records)
        self.reads += 1
        return records

    async def close(self) -> None:
        await self._reader.close()


@pytest.fixture
async def reader(log: SqliteLog) -> CountingReader:
    return CountingReader(await log.open(dict.fromkeys(PARTITIONS, 0)))


def records(count: int, size: int) -> list[NewRecord]:
    """Return different records over all partitions."""
    return [NewRecord(*PARTITIONS[n % len(PARTITIONS)], b"key", n.to_bytes(size, "big")) for n in range(count)]


async def batches(gathering: BatchReader, count: int) -> list[list[Record]]:
    """Read batches until they have `count` records."""
    found: list[list[Record]] = []
    async with asyncio.timeout(60):
        while sum(map(len, found)) < count:
            found.append(await gathering.batch())
    await gathering.close()
    return found


def assert_each_once_in_order(found: Sequence[Sequence[Record]], count: int) -> None:
    for partition in PARTITIONS:
        offsets = [r.offset for batch in found for r in batch if Partition(r.topic, r.partition) == partition]
        assert offsets == list(range(len(offsets)))
    assert sum(map(len, found)) == count


async def test_a_read_of_many_bytes_is_several_batches(log: SqliteLog, reader: CountingReader) -> None:
    """One read returns sixteen times the bytes of a batch."""
    await log.append(records(160, 1000))
    found = await batches(BatchReader(reader, IngestionLimits(flush_s=5, max_bytes=10_000), asyncio.Event()), 160)

    assert_each_once_in_order(found, 160)
    assert [sum(len(record.value) for record in batch) for batch in found] == [10_000] * 16


async def test_a_record_larger_than_a_batch_is_one(log: SqliteLog, reader: CountingReader) -> None:
    await log.append(records(3, 1000))
    found = await batches(BatchReader(reader, IngestionLimits(flush_s=5, max_bytes=10), asyncio.Event()), 3)
    assert [len(batch) for batch in found] == [1, 1, 1]


async def test_a_batch_has_at_most_max_records(log: SqliteLog, reader: CountingReader) -> None:
    """The second of two reads is cut where the batch is full."""
    hurry = asyncio.Event()
    gathering = BatchReader(reader, IngestionLimits(flush_s=5, max_records=10), hurry)
    await log.append(records(7, 8))
    first = asyncio.create_task(gathering.batch())
    async with asyncio.timeout(60):
        while reader.given < 7:
            await asyncio.sleep(0)
    await log.append([NewRecord(*PARTITIONS[0], b"key", b"more") for _ in range(9)])
    found = [await first]
    assert len(found[0]) == 10
    hurry.set()
    found += await batches(gathering, 6)
    assert_each_once_in_order(found, 16)


async def test_nothing_is_read_while_buffered_records_fill_batches(log: SqliteLog, reader: CountingReader) -> None:
    await log.append(records(100, 1000))
    gathering = BatchReader(reader, IngestionLimits(flush_s=5, max_records=40, max_bytes=10_000), asyncio.Event())
    for _ in range(4):
        assert len(await gathering.batch()) == 10
        assert reader.given == 40, "a read, of which the rest is held"
    await gathering.batch()
    assert reader.given == 80
    await gathering.close()


async def test_a_flush_returns_buffered_records_at_once(log: SqliteLog, reader: CountingReader) -> None:
    """While a flush is requested, buffered records are returned at once, though a batch could take more."""
    hurry = asyncio.Event()
    gathering = BatchReader(reader, IngestionLimits(flush_s=3600, max_bytes=10_000), hurry)
    await log.append(records(12, 1000))
    assert len(await gathering.batch()) == 10
    hurry.set()
    async with asyncio.timeout(60):
        assert len(await gathering.batch()) == 2
    await gathering.close()


async def test_records_that_trickle_in_are_read_together(
    log: SqliteLog, reader: CountingReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_reader, "_PAUSE_S", 3600)
    monkeypatch.setattr(batch_reader, "_READ_S", 60)
    flush = asyncio.Event()
    gathering = BatchReader(reader, IngestionLimits(flush_s=3600), flush)
    await log.append(records(1, 8))
    first = asyncio.create_task(gathering.batch())
    async with asyncio.timeout(60):
        while not reader.reads:
            await asyncio.sleep(0)
        for _ in range(5):
            await log.append([NewRecord(*PARTITIONS[0], b"key", b"more")])
            await asyncio.sleep(0)
        flush.set()
        assert len(await first) == 6
    assert reader.reads == 2
    await gathering.close()
