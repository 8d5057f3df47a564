"""Snapshots of states in memory: state and log offsets in one file, replaced atomically."""

import os
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.errors import UnavailableError
from services.log.port import Partition, RecordMark
from services.process.crashpoint import Point, reached
from services.process.logs import logger

_SCHEMA = """
CREATE TABLE blobs (key BLOB NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE offsets (topic TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL);
CREATE TABLE record_marks (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
  crc INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state as (key, value) blobs, in the order they were written, and the next offset of each partition.

    `marks`: the marks of the last records that the state has applied; none in files of former versions.
    """

    offsets: dict[Partition, int]
    blobs: list[tuple[bytes, bytes]]
    marks: dict[Partition, RecordMark]


class SnapshotFile:
    """The snapshot at `path`. A damaged one, or one of another schema version, is ignored."""

    def __init__(self, path: Path, version: int) -> None:
        self.path = path
        self._version = version

    def load(self) -> Snapshot | None:
        if not self.path.exists():
            return None
        try:
            return self._read()
        except sqlite3.Error as error:
            logger.warning("a snapshot cannot be read and is ignored", path=str(self.path), error=str(error))
            return None

    def _read(self) -> Snapshot | None:
        connection = sqlite3.connect(self.path)
        try:
            if connection.execute("PRAGMA user_version").fetchone()[0] != self._version:
                return None
            offsets = {Partition(t, p): n for t, p, n in connection.execute("SELECT * FROM offsets")}
            marks = _read_marks(connection)
            rows = connection.execute("SELECT key, value, crc FROM blobs ORDER BY rowid").fetchall()
        finally:
            connection.close()
        for key, value, crc in rows:
            if _crc(key, value) != crc:
                raise sqlite3.DatabaseError("a stored blob has changed")
        return Snapshot(offsets, [(key, value) for key, value, _ in rows], marks)

    def save(
        self,
        offsets: Mapping[Partition, int],
        blobs: Iterable[tuple[bytes, bytes]],
        marks: Mapping[Partition, RecordMark] | None = None,
    ) -> None:
        """Write the snapshot to a new file, make it durable, and replace the old one.

        UnavailableError: it cannot be written; the old one is unchanged.
        """
        reached(Point.SNAPSHOT_TAKEN, self.path.parent.name)
        fresh = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)
            self._write(fresh, offsets, blobs, marks or {})
            reached(Point.SNAPSHOT_WRITTEN, self.path.parent.name)
            fresh.replace(self.path)
            directory = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
        except (sqlite3.Error, OSError) as error:
            fresh.unlink(missing_ok=True)
            raise UnavailableError(f"the snapshot {self.path} cannot be written: {error}") from error
        reached(Point.SNAPSHOT_REPLACED, self.path.parent.name)

    def _write(
        self,
        path: Path,
        offsets: Mapping[Partition, int],
        blobs: Iterable[tuple[bytes, bytes]],
        marks: Mapping[Partition, RecordMark],
    ) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            # A kill leaves a `.new` file that nothing reads, so no journal is needed.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(f"BEGIN; {_SCHEMA}")  # with the rows in one transaction, which writes pages once
            connection.executemany("INSERT INTO offsets VALUES (?, ?, ?)", [(*p, n) for p, n in offsets.items()])
            connection.executemany(
                "INSERT INTO record_marks VALUES (?, ?, ?, ?, ?)", [(*p, *mark) for p, mark in marks.items()]
            )
            connection.executemany(
                "INSERT INTO blobs VALUES (?, ?, ?)", ((key, value, _crc(key, value)) for key, value in blobs)
            )
            connection.execute(f"PRAGMA user_version = {self._version}")
            connection.execute("COMMIT")
        finally:
            connection.close()


def _read_marks(connection: sqlite3.Connection) -> dict[Partition, RecordMark]:
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'record_marks'").fetchone():
        return {}
    rows = connection.execute("SELECT topic, partition, offset, length, crc FROM record_marks")
    return {Partition(t, p): RecordMark(*mark) for t, p, *mark in rows}


def _crc(key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key))
