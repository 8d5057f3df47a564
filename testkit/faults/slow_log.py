"""A log whose readers wait until a test releases them."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from services.runtime.log.port import Log, NewRecord, Partition, Reader, Record


class SlowLog:
    """Passes a log on, but its readers return nothing until `shown` is set. `asked` is set once one reads."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.topics = log.topics
        self.asked = asyncio.Event()
        self.shown = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        return await self._log.append(new_records)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return SlowReader(self, await self._log.open(starts))

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.ends(partitions)

    async def last(self, partition: Partition) -> Record | None:
        return await self._log.last(partition)

    async def check_writable(self) -> None:
        await self._log.check_writable()

    async def close(self) -> None:
        await self._log.close()


class SlowReader:
    def __init__(self, log: SlowLog, reader: Reader) -> None:
        self._log = log
        self._reader = reader

    async def read(self, max_records: int = 5000) -> list[Record]:
        self._log.asked.set()
        await self._log.shown.wait()
        return await self._reader.read(max_records)

    async def close(self) -> None:
        await self._reader.close()
