"""A role's state in memory, and its snapshot on disk: state and log offsets in one file, replaced in one step."""

import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.runtime.log import Partition

_SCHEMA = """
CREATE TABLE blobs (key BLOB NOT NULL, value BLOB NOT NULL);
CREATE TABLE offsets (topic TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state as (key, value) blobs, in the order they were written, and the next offset of each partition."""

    offsets: dict[Partition, int]
    blobs: list[tuple[bytes, bytes]]


class SnapshotFile:
    """One snapshot at `path`; one with another schema version counts as none."""

    def __init__(self, path: Path, version: int) -> None:
        self.path = path
        self._version = version

    def load(self) -> Snapshot | None:
        if not self.path.exists():
            return None
        connection = sqlite3.connect(self.path)
        try:
            if connection.execute("PRAGMA user_version").fetchone()[0] != self._version:
                return None
            offsets = {Partition(t, p): n for t, p, n in connection.execute("SELECT * FROM offsets")}
            return Snapshot(offsets, connection.execute("SELECT key, value FROM blobs ORDER BY rowid").fetchall())
        finally:
            connection.close()

    def save(self, offsets: Mapping[Partition, int], blobs: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the new snapshot beside the old one, make it durable, and put it in its place."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.unlink(missing_ok=True)
        connection = sqlite3.connect(fresh, isolation_level=None)
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO offsets VALUES (?, ?, ?)", [(*p, n) for p, n in offsets.items()])
        connection.executemany("INSERT INTO blobs VALUES (?, ?)", blobs)
        connection.execute("COMMIT")
        connection.execute(f"PRAGMA user_version = {self._version}")
        connection.close()
        fresh.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
