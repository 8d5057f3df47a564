"""A role that is killed at a chosen append to its log."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from services.runtime.log.port import Log, NewRecord, Partition, Reader, Record


class KilledError(Exception):
    """The process ended here."""


class CrashingLog:
    """The log of a process that may die in an append; subclasses choose in which, and then set `died`."""

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

    async def close(self) -> None:
        await self._log.close()


async def records_of(log: Log, partition: Partition) -> list[Record]:
    """Everything that the partition holds."""
    end = (await log.ends([partition]))[partition]
    records: list[Record] = []
    if end:
        reader = await log.open({partition: 0})
        while not records or records[-1].offset < end - 1:
            records += await reader.read()
        await reader.close()
    return records
