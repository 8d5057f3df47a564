"""The embedded event log: one SQLite file, written by one process.

WAL with synchronous=FULL: appended records survive a power cut. All appends that arrive while a transaction is written
go into the next one.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from services.errors import ConflictError, UnavailableError
from services.log.batcher import Batcher, ByteBudget
from services.log.port import (
    MAX_WAITING_BYTES,
    NewRecord,
    Partition,
    Record,
    TrimmedError,
    checked_size,
    trimmed,
    went_back,
)
from services.log.sqlite.file import RecordPage, changed_ends, connect, identity, select, stored_begins, stored_ends
from services.log.sqlite.reader import POLL_S, RecentRecords, SqliteReader
from services.log.sqlite.writer import SqliteWriter
from services.log.topics import Topics
from services.process.worker_thread import WorkerThread

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""About how many bytes are committed to the write-ahead log between two checkpoints."""

Result = TypeVar("Result")


class SqliteLog:
    """The Log port on one file. Opening it a second time for writing raises ConflictError.

    With `read_only`, it may be opened beside the process that writes it, and shows what that process has appended: its
    readers look for new records every `poll_s` seconds, and at once when `ends` finds some.
    `partitions` is the installation's number, stored in the file: opening it with another number raises ConflictError,
    because a key must not change its partition.
    """

    def __init__(
        self,
        path: Path,
        topics: Topics,
        *,
        partitions: int | None = None,
        read_only: bool = False,
        poll_s: float = POLL_S,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        self._path = path
        self.topics = topics
        self.read_only = read_only
        self.poll_s = poll_s
        self._writer = None if read_only else SqliteWriter(path, topics, checkpoint_bytes)
        self._reads = connect(path, read_only=True)
        self._read_thread = WorkerThread("log-read")
        if partitions is not None:
            self._check_partitions(partitions)
        self.identity = identity(self._reads)
        self._version, self._ends = stored_ends(self._reads)
        self.recent = RecentRecords()
        self._budget = ByteBudget(max_waiting_bytes)
        self._batcher: Batcher[NewRecord, int] = Batcher(self._ship, self._budget)
        self._readers: set[SqliteReader] = set()
        self._readers_of: dict[Partition, list[SqliteReader]] = {}
        self._closed = False

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if self.read_only:
            raise ConflictError(f"{self._path} was opened for reading only")
        self._check_open()
        size = checked_size(new_records, self.topics)
        self._budget.reserve(size)
        return list(await self._batcher.put(new_records, size)) if new_records else []

    async def open(self, starts: Mapping[Partition, int]) -> SqliteReader:
        begins = await self.begins(starts)
        ends = await self.ends(starts)  # nothing else is awaited before the reader is told of appends
        for partition, start in starts.items():
            if start < begins[partition]:
                raise TrimmedError(trimmed(partition, start, begins[partition]))
            if not 0 <= start <= ends[partition]:
                raise ConflictError(went_back(partition, start, ends[partition]))
        reader = SqliteReader(self, dict(starts), ends)
        self._readers.add(reader)
        for partition in starts:
            self._readers_of.setdefault(partition, []).append(reader)
        return reader

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        trimmed_to = await self._on_read_thread(lambda: stored_begins(self._reads))
        return {partition: trimmed_to.get(partition, 0) for partition in partitions}

    async def trim(self, partition: Partition, before: int) -> None:
        """Remove the records before an offset in small steps; see TrimmableLog.

        ConflictError: the records must stay.
        """
        end = (await self.ends([partition]))[partition]
        if self._writer is None or self.topics[partition.topic].compacted or before > end:
            raise ConflictError(f"{partition.topic}/{partition.number} of {self._path} cannot be trimmed to {before}")
        if before > (await self.begins([partition]))[partition]:
            await self._writer.trim(partition, before)

    async def unarchived_from(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self.begins(partitions)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        if self.read_only:
            await self._look()
        return {partition: self._ends.get(partition, 0) for partition in partitions}

    async def _look(self) -> None:
        """Find out what the writing process has appended, and notify the readers. Cheap while there is nothing new."""
        known = self._version
        self._version, ends = await self._on_read_thread(lambda: changed_ends(self._reads, known))
        if ends is not None:
            self._ends = ends
            for reader in self._readers:
                reader.notify(ends)

    async def last(self, partition: Partition) -> Record | None:
        end = (await self.ends([partition]))[partition]
        return next(iter((await self.select({partition: end - 1}, 1)).records), None) if end else None

    async def select(self, starts: Mapping[Partition, int], limit: int) -> RecordPage:
        """Return the records from the starts on, partition by partition: at most `limit`, about 16 MiB."""
        return await self._on_read_thread(lambda: select(self._reads, starts, limit))

    def stored(self, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        return new_records

    async def check_writable(self) -> None:
        self._check_open()
        if self._writer is None:
            raise UnavailableError(f"{self._path} was opened for reading only")
        await self._writer.check_writable()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._batcher.drain()
        for reader in list(self._readers):
            await reader.close()
        # In this order, because the last connection to close ends the write-ahead log if it may write.
        await asyncio.to_thread(self._release_reads)
        if self._writer is not None:
            await self._writer.close()

    def _check_partitions(self, partitions: int) -> None:
        present = self._reads.execute("PRAGMA user_version").fetchone()[0]
        if present == 0 and self._writer is not None:
            self._writer.set_partitions(partitions)
        elif present not in (0, partitions):
            self._release_reads()
            if self._writer is not None:
                self._writer.release()
            raise ConflictError(
                f"{self._path} was made for {present} partitions: set CARILLON_PARTITIONS={present}, or use another"
                " directory"
            )

    def remove_reader(self, reader: SqliteReader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            for partition in reader.partitions:
                self._readers_of[partition].remove(reader)

    def _release_reads(self) -> None:
        self._read_thread.shutdown()
        self._reads.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the event log is closed")

    async def _ship(self, new_records: list[NewRecord]) -> Sequence[int]:
        assert self._writer is not None
        changed: dict[Partition, int] = {}
        offsets = []
        for new_record in new_records:
            partition = Partition(new_record.topic, new_record.partition)
            offsets.append(changed.get(partition, self._ends.get(partition, 0)))
            changed[partition] = offsets[-1] + 1
        await self._writer.insert(new_records, offsets, changed)
        self._ends |= changed
        self.recent.add(
            Record(new_record.topic, new_record.partition, offset, new_record.key, new_record.value)
            for new_record, offset in zip(new_records, offsets, strict=True)
            if not self.topics[new_record.topic].compacted
        )
        for reader in dict.fromkeys(reader for partition in changed for reader in self._readers_of.get(partition, ())):
            reader.notify(changed)
        return offsets

    async def _on_read_thread(self, function: Callable[[], Result]) -> Result:
        self._check_open()
        try:
            return await self._read_thread.call(function)
        except sqlite3.Error as error:
            raise UnavailableError(f"the event log {self._path} cannot be read: {error}") from error
