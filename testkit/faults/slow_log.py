"""A log whose readers wait until a test releases them."""

import asyncio
from collections.abc import Mapping

from services.runtime.log.delegating import DelegatingLog
from services.runtime.log.port import Log, Partition, Reader, Record


class SlowLog(DelegatingLog):
    """Passes a log on, but its readers return nothing until `shown` is set. `asked` is set once one reads."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.asked = asyncio.Event()
        self.shown = asyncio.Event()

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return SlowReader(self, await super().open(starts))


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
