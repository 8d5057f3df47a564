"""The embedded event log: one SQLite file, written by one process.

WAL with synchronous=FULL: what `append` has answered survives a power cut. All appends that arrive while a
transaction is being written go into the next one.
"""

import asyncio
import contextlib
import fcntl
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from services.runtime.errors import ConflictError, UnavailableError
from services.runtime.log.batcher import Batcher, ByteBudget
from services.runtime.log.port import MAX_WAITING_BYTES, NewRecord, Partition, Record, checked_size
from services.runtime.log.recent_records import RecentRecords
from services.runtime.log.topics import Topics

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY (topic, partition, "offset")) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS latest (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, key BLOB NOT NULL, "offset" INTEGER NOT NULL,
  PRIMARY KEY (topic, partition, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ends (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, "end" INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)) WITHOUT ROWID;
"""
_READ_BYTES = 16 * 1024 * 1024
_POLL_S = 0.1
Result = TypeVar("Result")


class Page(NamedTuple):
    """Records read at once, and the partitions that were read to their end."""

    records: list[Record]
    exhausted: list[Partition]


class SqliteLog:
    """The Log port on one file. Opening it a second time for writing raises ConflictError.

    Opened with `read_only` beside the process that writes it, it sees what that process has answered. `partitions` is
    the installation's number, kept in the file: another one later raises ConflictError, because a key must not move.
    """

    def __init__(
        self,
        path: Path,
        topics: Topics,
        *,
        partitions: int | None = None,
        read_only: bool = False,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._path = path
        self.topics = topics
        self.read_only = read_only
        self._lock = None if read_only else _lock(path)
        self._writer = None if read_only else _connect(path, read_only=False)
        self._reads = _connect(path, read_only=True)
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="log-write")
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix="log-read")
        if partitions is not None:
            self._check_partitions(partitions)
        self._ends = self._stored_ends()
        self.recent = RecentRecords()
        self._budget = ByteBudget(max_waiting_bytes)
        self._batcher: Batcher[NewRecord, int] = Batcher(self._ship, self._budget)
        self._readers: set[_SqliteReader] = set()
        self._closed = False

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if self.read_only:
            raise ConflictError(f"{self._path} was opened for reading only")
        self._check_open()
        size = checked_size(new_records, self.topics)
        self._budget.enter(size)
        return list(await self._batcher.put(new_records, size)) if new_records else []

    async def open(self, starts: Mapping[Partition, int]) -> "_SqliteReader":
        ends = await self.ends(starts)
        for partition, start in starts.items():
            if not 0 <= start <= ends[partition]:
                raise ConflictError(
                    f"{partition.topic}/{partition.number} ends at {ends[partition]}, but {start} was asked for: the"
                    " state belongs to another log; rebuild it with `carillon replay`"
                )
        reader = _SqliteReader(self, dict(starts), ends)
        self._readers.add(reader)
        return reader

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        if self.read_only:
            self._ends = await self._on_read_thread(self._stored_ends)
        return {partition: self._ends.get(partition, 0) for partition in partitions}

    async def last(self, partition: Partition) -> Record | None:
        end = (await self.ends([partition]))[partition]
        return next(iter((await self.select({partition: end - 1}, 1)).records), None) if end else None

    async def select(self, starts: Mapping[Partition, int], limit: int) -> Page:
        """The records from the starts on, partition by partition, until there are `limit` or 16 MiB of them."""
        return await self._on_read_thread(lambda: self._rows(starts, limit))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._batcher.drain()
        for reader in list(self._readers):
            await reader.close()
        await asyncio.to_thread(self._let_go)

    def _check_partitions(self, partitions: int) -> None:
        kept = self._reads.execute("PRAGMA user_version").fetchone()[0]
        if kept == 0 and self._writer is not None:
            self._writer.execute(f"PRAGMA user_version = {partitions}")
        elif kept not in (0, partitions):
            self._let_go()
            raise ConflictError(
                f"{self._path} was made for {kept} partitions: set CARILLON_PARTITIONS={kept}, or use another directory"
            )

    def forget(self, reader: "_SqliteReader") -> None:
        self._readers.discard(reader)

    def _let_go(self) -> None:
        self._write_thread.shutdown()
        self._read_thread.shutdown()
        self._reads.close()
        if self._writer:
            self._writer.close()
        if self._lock:
            self._lock.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the event log is closed")

    async def _ship(self, new_records: list[NewRecord]) -> Sequence[int]:
        changed: dict[Partition, int] = {}
        offsets = []
        for new_record in new_records:
            partition = Partition(new_record.topic, new_record.partition)
            offsets.append(changed.get(partition, self._ends.get(partition, 0)))
            changed[partition] = offsets[-1] + 1
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._write_thread, self._write, new_records, offsets, changed)
        self._ends |= changed
        self.recent.add(
            Record(new_record.topic, new_record.partition, offset, new_record.key, new_record.value)
            for new_record, offset in zip(new_records, offsets, strict=True)
            if not self.topics[new_record.topic].compacted
        )
        for reader in self._readers:
            reader.notify(changed)
        return offsets

    def _write(self, new_records: list[NewRecord], offsets: list[int], ends: dict[Partition, int]) -> None:
        assert self._writer is not None
        rows = [(d.topic, d.partition, offset, d.key, d.value) for d, offset in zip(new_records, offsets, strict=True)]
        try:
            with self._writer:
                self._writer.execute("BEGIN IMMEDIATE")
                self._writer.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
                self._writer.executemany(
                    'INSERT INTO ends VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "end" = excluded."end"',
                    [(p.topic, p.number, end) for p, end in ends.items()],
                )
                for topic, partition, offset, key, _ in rows:
                    if self.topics[topic].compacted:
                        _compact(self._writer, topic, partition, offset, key)
        except sqlite3.Error as error:
            raise UnavailableError(f"the event log {self._path} cannot be written: {error}") from error

    async def _on_read_thread(self, function: Callable[[], Result]) -> Result:
        self._check_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._read_thread, function)
        except sqlite3.Error as error:
            raise UnavailableError(f"the event log {self._path} cannot be read: {error}") from error

    def _stored_ends(self) -> dict[Partition, int]:
        rows = self._reads.execute('SELECT topic, partition, "end" FROM ends').fetchall()
        return {Partition(topic, partition): end for topic, partition, end in rows}

    def _rows(self, starts: Mapping[Partition, int], limit: int) -> Page:
        page = Page([], [])
        size = 0
        for partition, start in starts.items():
            cursor = self._reads.execute(
                'SELECT "offset", key, value FROM records WHERE topic = ? AND partition = ? AND "offset" >= ?'
                ' ORDER BY "offset" LIMIT ?',
                (partition.topic, partition.number, start, limit - len(page.records)),
            )
            for row in cursor:
                page.records.append(Record(partition.topic, partition.number, *row))
                size += len(row[2])
                if size > _READ_BYTES:
                    break
            cursor.close()
            if size > _READ_BYTES or len(page.records) >= limit:
                break
            page.exhausted.append(partition)
        return page


class _SqliteReader:
    """Reads only partitions it knows to be behind; the log tells it when one of them has grown."""

    def __init__(self, log: SqliteLog, positions: dict[Partition, int], ends: dict[Partition, int]) -> None:
        self._log = log
        self._positions = positions
        self._ends = ends
        self._behind = dict.fromkeys(p for p, start in positions.items() if start < ends[p])
        self._news = asyncio.Event()
        self._closed = False

    def notify(self, ends: Mapping[Partition, int]) -> None:
        for partition in ends.keys() & self._positions.keys():
            self._ends[partition] = ends[partition]
            if self._positions[partition] < ends[partition]:
                self._behind[partition] = None
                self._news.set()

    async def read(self, max_records: int = 5000) -> list[Record]:
        while not self._closed:
            if not self._behind:
                await self._wait()
                continue
            starts = {partition: self._positions[partition] for partition in self._behind}
            ends = dict(self._ends)
            page = Page(*self._log.recent.since(starts, max_records))
            if not page.records:
                page = await self._log.select(starts, max_records)
            self._advance(page, ends)
            if page.records:
                return page.records
        raise UnavailableError("the reader was closed")

    async def close(self) -> None:
        self._closed = True
        self._news.set()
        self._log.forget(self)

    async def _wait(self) -> None:
        self._news.clear()
        if self._log.read_only:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _POLL_S)
            if not self._closed:
                self.notify(await self._log.ends(self._positions))
        else:
            await self._news.wait()

    def _advance(self, page: Page, ends: Mapping[Partition, int]) -> None:
        """Move behind what was read; `ends` were known before reading. The partition read last goes to the back."""
        reached = {Partition(r.topic, r.partition): r.offset + 1 for r in page.records}
        for partition in page.exhausted:
            reached[partition] = max(ends[partition], reached.get(partition, 0))
        for partition, position in reached.items():
            self._positions[partition] = position
            self._behind.pop(partition, None)
            if position < self._ends[partition]:
                self._behind[partition] = None


def _compact(connection: sqlite3.Connection, topic: str, partition: int, offset: int, key: bytes) -> None:
    """Keep only the record at `offset` of its key."""
    where = (topic, partition, key)
    row = connection.execute(
        'SELECT "offset" FROM latest WHERE topic = ? AND partition = ? AND key = ?', where
    ).fetchone()
    if row:
        connection.execute(
            'DELETE FROM records WHERE topic = ? AND partition = ? AND "offset" = ?', (topic, partition, row[0])
        )
    connection.execute("INSERT OR REPLACE INTO latest VALUES (?, ?, ?, ?)", (*where, offset))


def _lock(path: Path) -> IO[bytes]:
    """Hold the file for this process; the system lets go of it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConflictError(f"the event log {path} is open in another process") from error
    return lock


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=10,
        )
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(_SCHEMA)
    except sqlite3.Error as error:
        raise UnavailableError(f"the event log {path} cannot be opened: {error}") from error
    return connection
