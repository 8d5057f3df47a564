"""Reads several groups of partitions in turn, so that a backlog of one group does not keep another group waiting."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from services.runtime.errors import UnavailableError
from services.runtime.log.port import Reader, Record

PIECE_BYTES = 1024 * 1024


class ReadersInTurn:
    """The Reader port over several readers: each `read` returns a piece of one reader's page, the next reader's next.

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
        """Take what was read. The error of a reader is raised once, and that reader reads again next time."""
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
