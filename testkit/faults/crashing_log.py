"""A log that simulates the death of its process in a chosen append."""

import asyncio
from collections.abc import Callable, Sequence

from services.log.port import DelegatingLog, Log, NewRecord, Partition, Record


class KilledError(Exception):
    """The simulated process has ended."""


class CrashingLog(DelegatingLog):
    """A log whose process may die in an append; subclasses choose in which one, and then set `died`."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.died = asyncio.Event()


class KillingLog(CrashingLog):
    """A log that kills its process during the first append with a record for which `kill_at` holds.

    Only the first `kept_records` of that append are in the log afterwards.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.kill_at: Callable[[NewRecord], bool] = lambda new_record: False
        self.kept_records = 0

    def restart(self) -> None:
        """Accept appends again."""
        self.kill_at = lambda new_record: False
        self.died.clear()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if self.died.is_set():
            raise KilledError
        if not any(self.kill_at(new_record) for new_record in new_records):
            return await self._log.append(new_records)
        await self._log.append(new_records[: self.kept_records])
        self.died.set()
        raise KilledError


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
