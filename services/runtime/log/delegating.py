"""A log that passes every call on to another log."""

from collections.abc import Iterable, Mapping, Sequence

from services.runtime.log.port import Log, NewRecord, Partition, Reader, Record


class DelegatingLog:
    """Passes every call on; a subclass changes some of them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.topics = log.topics
        self.identity = log.identity

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        return await self._log.append(new_records)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return await self._log.open(starts)

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.begins(partitions)

    async def unarchived_from(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.unarchived_from(partitions)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.ends(partitions)

    async def last(self, partition: Partition) -> Record | None:
        return await self._log.last(partition)

    async def check_writable(self) -> None:
        await self._log.check_writable()

    async def close(self) -> None:
        await self._log.close()
