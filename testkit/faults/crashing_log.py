"""A log that simulates the death of its process in a chosen append."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from services.runtime.log.port import Log, NewRecord, Partition, Reader, Record


class KilledError(Exception):
    """The simulated process has ended."""


class CrashingLog:
    """A log whose process may die in an append; subclasses choose in which one, and then set `died`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.topics = log.topics
        self.died = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        return await self._log.append(new_records)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return await self._log.open(starts)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.ends(partitions)

    async def last(self, partition: Partition) -> Record | None:
        return await self._log.last(partition)

    async def check_writable(self) -> None:
        await self._log.check_writable()

    async def close(self) -> None:
        await self._log.close()


async def records_of(log: Log, partition: Partition) -> list[Record]:
    """Return all records of a partition."""
    end = (await log.ends([partition]))[partition]
    records: list[Record] = []
    if end:
        reader = await log.open({partition: 0})
        while not records or records[-1].offset < end - 1:
            records += await reader.read()
        await reader.close()
    return records
