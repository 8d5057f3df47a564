"""Reads the log in batches, bounded in time, records and bytes."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from services.errors import UnavailableError
from services.log.port import Reader, Record
from services.process.logs import logger

_RETRY_S = 1.0
_LARGE_BYTES = 1024 * 1024

_PAUSE_S = 0.25
"""Pause before the next read of a log from which few records come. It ends early when a flush is asked for."""

_FEW_RECORDS = 500

_READ_S = 0.01
"""How long a flush waits for the records that came in the pause that it ended, so that they are in the same batch."""


@dataclass(frozen=True, slots=True)
class IngestionLimits:
    """Bounds of one batch (`flush_s`, `max_records`, `max_bytes`), and deadlines of the ingestion in seconds."""

    flush_s: float = 0.3
    max_records: int = 20_000
    max_bytes: int = 8 * 1024 * 1024
    catch_up_s: float = 5.0
    ready_s: float = 5.0
    stop_s: float = 10.0

    def batch_length(self, records: Sequence[Record]) -> int:
        """Return how many of the first records make one batch; the one that reaches `max_bytes` is the last."""
        sizes = accumulate(len(record.value) for record in records[: self.max_records])
        return next((count for count, size in enumerate(sizes, 1) if size >= self.max_bytes), self.max_records)


class BatchReader:
    """Makes batches of a log reader's records, one read ahead. While `flush` is set no batch waits for more records.

    One read may return more than a batch takes. The rest goes into the next batches before anything else is read.
    Where reads return few records, the next one waits a little, so that it returns those of many appends together.
    """

    def __init__(self, reader: Reader, limits: IngestionLimits, flush: asyncio.Event) -> None:
        self._reader = reader
        self._limits = limits
        self._flush = flush
        self._reading: asyncio.Task[list[Record]] | None = None
        self._rest: list[Record] = []
        self.is_behind = False
        """Whether the last batch was large: it takes long to be written, and the next one probably does too."""

    async def batch(self) -> list[Record]:
        """Return the next batch; waits until there is at least one record."""
        loop = asyncio.get_running_loop()
        records = self._rest or await self._read()
        size = sum(len(record.value) for record in records)
        deadline, reads = loop.time() + self._limits.flush_s, 1
        while len(records) < self._limits.max_records and size < self._limits.max_bytes:
            if len(records) < _FEW_RECORDS * reads and not self._flush.is_set():
                await self._pause(min(_PAUSE_S, deadline - loop.time()))
                await asyncio.wait([self._read_task()], timeout=_READ_S)
            more = await self._read_before(deadline - loop.time())
            if not more:
                break
            records, reads = records + more, reads + 1
            size += sum(len(record.value) for record in more)
        self.is_behind = len(records) >= self._limits.max_records or size >= _LARGE_BYTES
        count = self._limits.batch_length(records)
        self._rest = records[count:]
        return records[:count]

    async def close(self) -> None:
        if self._reading:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, UnavailableError):
                await self._reading
        await self._reader.close()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self._flush.wait()

    async def _read_before(self, seconds: float) -> list[Record]:
        """Return the next records, or none when the time is over or a flush is asked for."""
        reading = self._read_task()
        flush = asyncio.ensure_future(self._flush.wait())
        try:
            await asyncio.wait([reading, flush], timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            flush.cancel()
        return await self._read() if reading.done() else []

    async def _read(self) -> list[Record]:
        while True:
            reading = self._read_task()
            try:
                await asyncio.wait([reading])
                self._reading = None
                return list(reading.result())
            except UnavailableError as error:
                logger.warning("the log does not answer", role="analytics", error=str(error))
                await asyncio.sleep(_RETRY_S)

    def _read_task(self) -> asyncio.Task[list[Record]]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._reader.read(self._limits.max_records))
        return self._reading


# Reads several groups of partitions in turn, so that a backlog of one group does not keep another group waiting.

PIECE_BYTES = 1024 * 1024


class ReadersInTurn:
    """The Reader port over several readers: each `read` returns a piece of one reader's page, reader by reader.

    A piece ends with the record that reaches PIECE_BYTES. Each reader reads one page ahead and no more.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._order = deque(readers)
        self._reading: dict[Reader, asyncio.Task[list[Record]]] = {}
        self._pages: dict[Reader, list[Record]] = {}

    async def read(self, max_records: int = 5000) -> list[Record]:
        while True:
            for reader in self._order:
                if reader not in self._pages and reader not in self._reading:
                    self._reading[reader] = asyncio.create_task(reader.read(max_records))
            if not self._pages:
                await asyncio.wait(self._reading.values(), return_when=asyncio.FIRST_COMPLETED)
            self._take_pages()
            for reader in self._order:
                if reader in self._pages:
                    self._order.remove(reader)
                    self._order.append(reader)
                    return self._piece(reader, max_records)

    def _take_pages(self) -> None:
        """Take the pages that were read. The error of a reader is raised once, and it reads again next time."""
        for reader, reading in list(self._reading.items()):
            if reading.done():
                del self._reading[reader]
                self._pages[reader] = reading.result()

    def _piece(self, reader: Reader, max_records: int) -> list[Record]:
        page = self._pages.pop(reader)
        sizes = accumulate(len(record.value) for record in page[:max_records])
        count = next((count for count, size in enumerate(sizes, 1) if size >= PIECE_BYTES), max_records)
        if count < len(page):
            self._pages[reader] = page[count:]
        return page[:count]

    async def close(self) -> None:
        for reading in self._reading.values():
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, UnavailableError):
                await reading
        for reader in self._order:
            await reader.close()


# Waiting for tasks of the ingestion that depend on each other.


async def run_to_end(work: Awaitable[None], stop_s: float) -> None:
    """Run the work to its end; when cancelled, wait for that at most `stop_s` seconds."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=stop_s)
        task.cancel()
        raise


async def nothing() -> None:
    """Do nothing, in place of a write before that of the first batch."""


async def until_done(task: asyncio.Task[Any], *, unless_failed: asyncio.Task[Any]) -> None:
    """Wait for a task; raise the error of the other one at once, should it fail meanwhile."""
    pending = {task, unless_failed}
    while not task.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if unless_failed in done:
            unless_failed.result()
