"""Records of the log, a batch at a time: as much as comes within a moment, and no more than fits."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from services.runtime.errors import UnavailableError
from services.runtime.log.port import Reader, Record
from services.runtime.process.logs import logger

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How much is gathered for one batch, and for how long; and what waits for whom, at most, in seconds."""

    flush_s: float = 0.3
    max_records: int = 20_000
    max_bytes: int = 8 * 1024 * 1024
    catch_up_s: float = 5.0
    ready_s: float = 5.0
    stop_s: float = 10.0

    def fitting(self, records: Sequence[Record]) -> int:
        """How many of the first records make one batch: the one that reaches the bytes is the last of them."""
        sizes = accumulate(len(record.value) for record in records[: self.max_records])
        return next((count for count, size in enumerate(sizes, 1) if size >= self.max_bytes), self.max_records)


class Gathering:
    """Reads ahead by one read. `hurry` is set while somebody waits: then nothing is held back.

    One read may give more than a batch takes. The rest is for the next ones, and nothing is read while it fills them.
    """

    def __init__(self, reader: Reader, pace: Pace, hurry: asyncio.Event) -> None:
        self._reader = reader
        self._pace = pace
        self._hurry = hurry
        self._reading: asyncio.Task[list[Record]] | None = None
        self._rest: list[Record] = []

    async def batch(self) -> list[Record]:
        """At least one record; waits until there is one."""
        loop = asyncio.get_running_loop()
        records = self._rest or await self._read()
        size = sum(len(record.value) for record in records)
        deadline = loop.time() + self._pace.flush_s
        while len(records) < self._pace.max_records and size < self._pace.max_bytes:
            more = await self._read_before(deadline - loop.time())
            if not more:
                break
            records += more
            size += sum(len(record.value) for record in more)
        count = self._pace.fitting(records)
        self._rest = records[count:]
        return records[:count]

    async def close(self) -> None:
        if self._reading:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, UnavailableError):
                await self._reading
        await self._reader.close()

    async def _read_before(self, seconds: float) -> list[Record]:
        """The next records, or none when the time is over or somebody is in a hurry."""
        reading = self._started()
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait([reading, hurry], timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
        return await self._read() if reading.done() else []

    async def _read(self) -> list[Record]:
        while True:
            reading = self._started()
            try:
                await asyncio.wait([reading])
                self._reading = None
                return list(reading.result())
            except UnavailableError as error:
                logger.warning("the log does not answer", role="analytics", error=str(error))
                await asyncio.sleep(_RETRY_S)

    def _started(self) -> asyncio.Task[list[Record]]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._reader.read(self._pace.max_records))
        return self._reading
