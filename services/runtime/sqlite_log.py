"""The embedded event log: one SQLite file, written by one process.

WAL with synchronous=FULL: what `append` has answered survives a power cut. All appends that arrive while a
transaction is being written go into the next one.
"""

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.runtime.errors import ConflictError, InputError, UnavailableError
from services.runtime.group_commit import Lane
from services.runtime.log import MAX_RECORD_BYTES, Draft, Partition, Record
from services.runtime.topics import TOPICS

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY (topic, partition, "offset")) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS latest (
  topic TEXT NOT NULL, key BLOB NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
  PRIMARY KEY (topic, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ends (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, "end" INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)) WITHOUT ROWID;
"""


class SqliteLog:
    """The Log port on one file. Opening it a second time for writing raises ConflictError."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        self._writer = _connect(path, read_only)
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="log-write")
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix="log-read")
        self._reads = self._writer if read_only else _connect(path, read_only=True)
        self._ends = {
            Partition(topic, partition): end
            for topic, partition, end in self._writer.execute('SELECT topic, partition, "end" FROM ends')
        }
        self._lane: Lane[Draft, int] = Lane(self._ship)
        self._readers: set[_SqliteReader] = set()

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        for draft in drafts:
            if len(draft.key) + len(draft.value) > MAX_RECORD_BYTES:
                raise InputError(f"a record of {len(draft.value)} bytes is too large for the event log")
        return list(await self._lane.put(drafts)) if drafts else []

    async def open(self, starts: Mapping[Partition, int]) -> "_SqliteReader":
        for partition, start in starts.items():
            if start > self._ends.get(partition, 0):
                raise ConflictError(
                    f"{partition.topic}/{partition.number} ends at {self._ends.get(partition, 0)}, but {start} was asked"
                    " for: the state belongs to another log; rebuild it with `carillon replay`"
                )
        reader = _SqliteReader(self, dict(starts))
        self._readers.add(reader)
        return reader

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {partition: self._ends.get(partition, 0) for partition in partitions}

    async def last(self, partition: Partition) -> Record | None:
        end = self._ends.get(partition, 0)
        return next(iter(await self._select(partition, end - 1, 1)), None) if end else None

    async def close(self) -> None:
        await self._lane.drain()
        for reader in list(self._readers):
            await reader.close()
        self._write_thread.shutdown()
        self._read_thread.shutdown()
        if self._reads is not self._writer:
            self._reads.close()
        self._writer.close()

    async def _ship(self, drafts: list[Draft]) -> Sequence[int]:
        ends = dict(self._ends)
        offsets = []
        for draft in drafts:
            partition = Partition(draft.topic, draft.partition)
            offsets.append(ends.get(partition, 0))
            ends[partition] = offsets[-1] + 1
        changed = {partition: ends[partition] for partition in {Partition(d.topic, d.partition) for d in drafts}}
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._write_thread, self._write, drafts, offsets, changed)
        self._ends = ends
        for reader in self._readers:
            reader.notify(changed)
        return offsets

    def _write(self, drafts: list[Draft], offsets: list[int], ends: dict[Partition, int]) -> None:
        if self._read_only:
            raise ConflictError(f"{self._path} was opened for reading only")
        rows = [(d.topic, d.partition, offset, d.key, d.value) for d, offset in zip(drafts, offsets, strict=True)]
        compacted = [row for row in rows if TOPICS[row[0]].compacted]
        try:
            with self._writer:
                self._writer.execute("BEGIN IMMEDIATE")
                self._writer.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
                self._writer.executemany(
                    'INSERT INTO ends VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "end" = excluded."end"',
                    [(p.topic, p.number, end) for p, end in ends.items()],
                )
                for topic, partition, offset, key, _ in compacted:
                    self._compact(topic, partition, offset, key)
        except sqlite3.Error as error:
            raise UnavailableError(f"the event log {self._path} cannot be written: {error}") from error

    def _compact(self, topic: str, partition: int, offset: int, key: bytes) -> None:
        row = self._writer.execute(
            'SELECT partition, "offset" FROM latest WHERE topic = ? AND key = ?', (topic, key)
        ).fetchone()
        if row:
            self._writer.execute(
                'DELETE FROM records WHERE topic = ? AND partition = ? AND "offset" = ?', (topic, *row)
            )
        self._writer.execute("INSERT OR REPLACE INTO latest VALUES (?, ?, ?, ?)", (topic, key, partition, offset))

    async def _select(self, partition: Partition, start: int, limit: int) -> list[Record]:
        rows = await asyncio.get_running_loop().run_in_executor(self._read_thread, self._rows, partition, start, limit)
        return [Record(partition.topic, partition.number, *row) for row in rows]

    def _rows(self, partition: Partition, start: int, limit: int) -> list[tuple[int, bytes, bytes]]:
        return self._reads.execute(
            'SELECT "offset", key, value FROM records WHERE topic = ? AND partition = ? AND "offset" >= ?'
            ' ORDER BY "offset" LIMIT ?',
            (partition.topic, partition.number, start, limit),
        ).fetchall()


class _SqliteReader:
    def __init__(self, log: SqliteLog, positions: dict[Partition, int]) -> None:
        self._log = log
        self._positions = positions
        self._behind = {p for p, start in positions.items() if start < log._ends.get(p, 0)}
        self._news = asyncio.Event()

    def notify(self, changed: Mapping[Partition, int]) -> None:
        news = changed.keys() & self._positions.keys()
        if news:
            self._behind |= news
            self._news.set()

    async def read(self, max_records: int = 5000) -> list[Record]:
        records: list[Record] = []
        while not records:
            while not self._behind:
                self._news.clear()
                await self._news.wait()
            for partition in list(self._behind):
                records += await self._read_partition(partition, max_records - len(records))
                if len(records) >= max_records:
                    break
        return records

    async def _read_partition(self, partition: Partition, limit: int) -> list[Record]:
        end = self._log._ends.get(partition, 0)
        records = await self._log._select(partition, self._positions[partition], limit)
        if len(records) < limit:
            self._positions[partition] = max(end, records[-1].offset + 1 if records else 0)
        else:
            self._positions[partition] = records[-1].offset + 1
        if self._positions[partition] >= self._log._ends.get(partition, 0):
            self._behind.discard(partition)
        return records

    async def close(self) -> None:
        self._log._readers.discard(self)


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"file:{path}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=10
    )
    if not read_only:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
    return connection
