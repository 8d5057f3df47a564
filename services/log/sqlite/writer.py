"""The writing side of the embedded log's file: one connection in a thread of its own, and the lock of the process."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from services.errors import UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.file import PAGE_BYTES, connect, insert, lock, rewrite_version, trim_step
from services.log.topics import Topics
from services.process import background
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.worker_thread import WorkerThread

# Checkpoints of the embedded log: committed pages go from the write-ahead log into the file beside the commits.
#
# SQLite's own checkpoint is off: it is a part of the commit that makes the write-ahead log too long, and that commit
# would wait until many pages are on the disk.

Checkpoint = Callable[[], None]


class Checkpoints:
    """Starts a checkpoint whenever about `every_bytes` were committed since the last one.

    Its first pass runs in a thread and on a connection of its own, while commits go on. The second, `finish`, runs
    between two commits and finds only the pages of the commits since, so that the next commit starts the write-ahead
    log again from its beginning, in blocks that its file has already.
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


_TRIM_PAUSE_S = 0.02
"""Pause after each step of trimming, so that other writes reach the disk."""


class SqliteWriter:
    """Writes the file of the log. ConflictError: another process has it open for writing.

    Its coroutines raise UnavailableError where the file cannot be written; the file is then unchanged.
    """

    def __init__(self, path: Path, topics: Topics, checkpoint_bytes: int) -> None:
        self._path = path
        self._topics = topics
        self._lock = lock(path)
        self._connection = connect(path, read_only=False)
        self._thread = WorkerThread("log-write")
        self._checkpoints = Checkpoints(connect(path, read_only=False), self._thread.call, checkpoint_bytes)

    def set_partitions(self, partitions: int) -> None:
        """Store the number of partitions as the file's user version."""
        self._connection.execute(f"PRAGMA user_version = {partitions}")

    async def insert(
        self, new_records: Sequence[NewRecord], offsets: Sequence[int], ends: Mapping[Partition, int]
    ) -> None:
        """Insert the records at the offsets, and the new ends of their partitions, in one transaction."""
        await self._thread.call(lambda: self._insert(new_records, offsets, ends))
        size = sum(len(new_record.key) + len(new_record.value) for new_record in new_records)
        self._checkpoints.note_commit(size + PAGE_BYTES * (len(new_records) + len(ends)))

    async def trim(self, partition: Partition, before: int) -> None:
        """Remove the records before the offset, step by step; appends are committed between two steps."""
        begin = -1
        while begin < before:
            begin, size = await self._thread.call(lambda: self._trim_step(partition, before))
            self._checkpoints.note_commit(size + PAGE_BYTES)
            reached(Point.SEGMENT_PARTLY_TRIMMED)
            await asyncio.sleep(_TRIM_PAUSE_S)

    async def check_writable(self) -> None:
        """Write a page of the file: the number of partitions, which stays the same."""
        await self._thread.call(self._rewrite_version)

    async def close(self) -> None:
        """Release the file once the present checkpoint and write have ended."""
        await self._checkpoints.wait()
        await asyncio.to_thread(self.release)

    def release(self) -> None:
        """Close the connections and unlock the file."""
        self._thread.shutdown()
        self._checkpoints.release()
        self._connection.close()
        self._lock.close()

    def _insert(self, new_records: Sequence[NewRecord], offsets: Sequence[int], ends: Mapping[Partition, int]) -> None:
        try:
            insert(self._connection, self._topics, new_records, offsets, ends)
        except sqlite3.Error as error:
            raise self._unwritable(error) from error

    def _trim_step(self, partition: Partition, before: int) -> tuple[int, int]:
        try:
            return trim_step(self._connection, partition, before)
        except sqlite3.Error as error:
            raise self._unwritable(error) from error

    def _rewrite_version(self) -> None:
        try:
            rewrite_version(self._connection)
        except sqlite3.Error as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: sqlite3.Error) -> UnavailableError:
        return UnavailableError(f"the event log {self._path} cannot be written: {error}")
