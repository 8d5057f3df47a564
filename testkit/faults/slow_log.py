"""A log whose readers wait until a test releases them."""

import asyncio
from collections.abc import Mapping

from services.log.port import DelegatingLog, Log, Partition, Reader, Record


class SlowLog(DelegatingLog):
    """A log whose readers return nothing until `released` is set; with a topic only the readers of that topic.

    `read_begun` is set once one of these readers waits.
    """

    def __init__(self, log: Log, topic: str = "") -> None:
        super().__init__(log)
        self._topic = topic
        self.read_begun = asyncio.Event()
        self.released = asyncio.Event()

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        reader = await super().open(starts)
        is_slow = not self._topic or any(partition.topic == self._topic for partition in starts)
        return SlowReader(self, reader) if is_slow else reader


class SlowReader:
    def __init__(self, log: SlowLog, reader: Reader) -> None:
        self._log = log
        self._reader = reader

    async def read(self, max_records: int = 5000) -> list[Record]:
        self._log.read_begun.set()
        await self._log.released.wait()
        return await self._reader.read(max_records)

    async def close(self) -> None:
        await self._reader.close()
