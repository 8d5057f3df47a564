"""Steps that the tests of the log share."""

import asyncio
from collections.abc import Mapping

from services.domain.topics import SESSIONS
from services.log.port import Log, NewRecord, Partition, Reader, Record

P0, P1, P2 = (Partition(SESSIONS.name, number) for number in range(3))


def new_record(value: str, partition: Partition = P0, key: str = "k") -> NewRecord:
    return NewRecord(partition.topic, partition.number, key.encode(), value.encode())


def values(records: list[Record]) -> list[str]:
    return [record.value.decode() for record in records]


async def read_count(reader: Reader, count: int, max_records: int = 5000) -> list[Record]:
    """Return the next `count` records, within 20 s."""
    records: list[Record] = []
    async with asyncio.timeout(60):
        while len(records) < count:
            records += await reader.read(max_records)
    assert len(records) == count
    return records


async def read_to_end(log: Log, starts: Mapping[Partition, int]) -> list[Record]:
    """Read all records from the starts up to the present ends of the partitions."""
    last = {partition: await log.last(partition) for partition in starts}
    missing = {p for p, record in last.items() if record is not None and record.offset >= starts[p]}
    reader = await log.open(starts)
    records: list[Record] = []
    async with asyncio.timeout(60):
        while missing:
            for record in await reader.read():
                records.append(record)
                partition = Partition(record.topic, record.partition)
                if record == last[partition]:
                    missing.discard(partition)
    await reader.close()
    return records
