"""Checkpoints of the embedded log: committed pages go from the write-ahead log into the file beside the commits.

SQLite's own checkpoint is a part of the commit that makes the write-ahead log too long, which then waits for many pages
to be on the disk.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

from services.runtime.process import background
from services.runtime.process.logs import logger
from services.runtime.process.worker_thread import WorkerThread

Checkpoint = Callable[[], None]


class Checkpoints:
    """Starts a checkpoint whenever about `every_bytes` were committed since the last one.

    Its first pass runs in a thread and on a connection of its own, while commits go on. The second, `finish`, runs
    between two commits and finds only the pages of those few, so that the next commit starts the write-ahead log again
    from its beginning, in blocks that the file has already.
    """

    def __init__(
        self, connection: sqlite3.Connection, finish: Callable[[Checkpoint], Awaitable[None]], every_bytes: int
    ) -> None:
        self._connection = connection
        self._finish = finish
        self._every_bytes = every_bytes
        self._committed = 0
        self._thread = WorkerThread("log-checkpoints")
        self._task: asyncio.Task[None] | None = None

    def note_commit(self, size: int) -> None:
        """Note that a transaction of about this many bytes was committed."""
        self._committed += size
        if self._committed >= self._every_bytes and (self._task is None or self._task.done()):
            self._committed = 0
            self._task = background.start("log checkpoint", self._run())

    async def wait(self) -> None:
        """Return once no checkpoint runs."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def release(self) -> None:
        """Close the connection."""
        self._thread.shutdown()
        self._connection.close()

    async def _run(self) -> None:
        try:
            await self._thread.call(self._checkpoint)
            await self._finish(self._checkpoint)
        except sqlite3.Error as error:
            # The log is whole without it: the write-ahead log only stays as long as it is.
            logger.warning("a checkpoint of the event log failed; the next one will be tried", error=str(error))

    def _checkpoint(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
