"""The reading loop of every in-memory directory: applies each record of one partition, from the first one on."""

import asyncio
from collections.abc import Callable

from services.errors import UnavailableError
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Reader, Record
from services.process import background
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.catch_up import CatchUpGoal, goal_of_now
from services.replica.health import Followed
from services.replica.positions import AppliedPositions

_REFRESH_S = 2.0


class PartitionReader:
    """Service that keeps a directory in memory up to date; `apply` is called with one record after the other."""

    def __init__(self, name: str, log: Log, partition: Partition, apply: Callable[[Record], None]) -> None:
        self.name = name
        self.applied = AppliedPositions()
        self._log = log
        self._partition = partition
        self._apply = apply
        self._refreshing: asyncio.Task[bool] | None = None
        self._next_refresh: asyncio.Task[bool] | None = None

    @property
    def followed(self) -> Followed:
        """The positions and the partition by which the process's health check judges the directory."""
        return Followed(self.name, self.applied, [self._partition])

    async def refresh(self) -> bool:
        """Return True once all records now in the log are applied, False if they are not after two seconds.

        Callers share the next refresh: the one in progress may have read the end of the log too early for them.
        """
        if self._next_refresh is None:
            self._next_refresh = background.start(f"refresh of the {self.name}", self._refresh(self._refreshing))
        refresh = self._next_refresh
        await asyncio.wait([refresh], timeout=_REFRESH_S)
        return refresh.done() and refresh.result()

    async def run(self, ready: asyncio.Event) -> None:
        """Catch up with the log, set `ready`, and follow the log until cancelled."""
        goal = await goal_of_now(self._log, self.name, [self._partition])
        start = {self._partition: 0}
        self.applied.advance(start)
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(start), role=self.name)
        try:
            while not await goal.is_reached(self.applied):
                await self._apply_next(reader)
            ready.set()
            while True:
                await self._apply_next(reader)
        finally:
            await reader.close()

    async def _refresh(self, earlier: "asyncio.Task[bool] | None") -> bool:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._refreshing, self._next_refresh = self._next_refresh, None
        try:
            async with asyncio.timeout(_REFRESH_S):
                reached = self.applied.next_offsets([self._partition])
                ends = await self._log.ends([self._partition])
                if reached != ends:  # the directory may miss records that are compacted away before it reads them
                    await CatchUpGoal(self._log, self.name, ends).wait_reached(self.applied)
        except (TimeoutError, UnavailableError) as error:
            logger.warning("an in-memory directory may lack the newest records", directory=self.name, error=str(error))
            return False
        return True

    async def _apply_next(self, reader: Reader) -> None:
        records = await retry_until_available(LOG_UNAVAILABLE, reader.read, role=self.name)
        for record in records:
            self._apply(record)
        self.applied.advance({self._partition: records[-1].offset + 1})
