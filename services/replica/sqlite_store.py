"""A role's state on disk: rows and log offsets in one SQLite file, changed in one transaction.

WAL with synchronous=NORMAL: a power cut may lose the last transactions, rows and offsets together; they are applied
again from the log.
"""

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from services.errors import UnavailableError
from services.log.port import Partition, RecordMark
from services.replica.sqlite_purge import purged_until

_POSITIONS = """
CREATE TABLE IF NOT EXISTS offsets (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (topic, partition)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS epochs (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, epoch INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, key BLOB NOT NULL,
  PRIMARY KEY (topic, partition, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record_marks (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
  crc INTEGER NOT NULL, PRIMARY KEY (topic, partition)) WITHOUT ROWID;
"""
_NO_STATE = "('offsets', 'epochs', 'refused', 'record_marks')"


def stored_offsets(path: Path) -> dict[Partition, int]:
    """Return the next offsets in the file of another process's store; none where there is no such file yet.

    UnavailableError: the file cannot be read.
    """
    if not path.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as rows:
            return {Partition(t, p): n for t, p, n in rows.execute("SELECT topic, partition, next FROM offsets")}
    except sqlite3.Error as error:
        raise UnavailableError(f"the state {path} cannot be read: {error}") from error


class SqliteStore:
    """A TransactionalStore in one file. A file whose schema differs from `ddl` is replaced by an empty one.

    `purged_until`: up to which offset of `erasures` the file had nothing left of erased persons when it was opened.
    """

    def __init__(self, path: Path, ddl: str) -> None:
        """Open the file, or make it. UnavailableError: it cannot be written."""
        self.path = path
        try:
            self._make(path, ddl)
            self.purged_until = purged_until(self.rows)
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"the state {path} cannot be written: {error}") from error

    def _make(self, path: Path, ddl: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = _open(path)
        version = int.from_bytes(hashlib.sha256(ddl.encode()).digest()[:3], "big")
        if self.rows.execute("PRAGMA user_version").fetchone()[0] != version:
            self.rows.close()
            remove(path)
            self.rows = _open(path)
            self.rows.executescript(f"BEGIN; {_POSITIONS} {ddl}; PRAGMA user_version = {version}; COMMIT")
        else:
            self.rows.executescript(f"BEGIN; {_POSITIONS}; COMMIT")

    def offsets(self) -> dict[Partition, int]:
        """Return the next offset of each partition that the rows have applied."""
        return {Partition(t, p): n for t, p, n in self.rows.execute("SELECT topic, partition, next FROM offsets")}

    def marks(self) -> dict[Partition, RecordMark]:
        """Return the marks of the last records that the rows have applied; a former version stored none."""
        rows = self.rows.execute("SELECT topic, partition, offset, length, crc FROM record_marks")
        return {Partition(t, p): RecordMark(*mark) for t, p, *mark in rows}

    def epochs(self) -> dict[Partition, int]:
        """Return the highest epoch of each partition among the records that the rows have applied; absent means 0."""
        return {Partition(t, p): epoch for t, p, epoch in self.rows.execute("SELECT * FROM epochs")}

    def set_epoch(self, partition: Partition, epoch: int) -> None:
        """Store the highest epoch of a partition, in the transaction that has begun."""
        self.rows.execute("INSERT OR REPLACE INTO epochs VALUES (?, ?, ?)", (*partition, epoch))

    def refused(self) -> set[tuple[Partition, bytes]]:
        """Return the keys whose latest record in a partition was refused; see RefusedKeys."""
        return {(Partition(t, p), key) for t, p, key in self.rows.execute("SELECT * FROM refused")}

    def set_refused(self, partition: Partition, key: bytes, *, refused: bool) -> None:
        """Store whether the key's latest record was refused, in the transaction that has begun."""
        sql = (
            "INSERT OR IGNORE INTO refused VALUES (?, ?, ?)"
            if refused
            else "DELETE FROM refused WHERE topic = ? AND partition = ? AND key = ?"
        )
        self.rows.execute(sql, (*partition, key))

    def begin(self) -> None:
        self.rows.execute("BEGIN IMMEDIATE")

    def commit(self, offsets: Mapping[Partition, int], marks: Mapping[Partition, RecordMark] | None = None) -> None:
        """Make the rows changed since `begin`, these offsets and the marks of the last records durable together.

        UnavailableError: the disk does not take them; all changes are rolled back.
        """
        try:
            self.rows.executemany(
                "INSERT INTO offsets VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next = excluded.next",
                [(partition.topic, partition.number, next_offset) for partition, next_offset in offsets.items()],
            )
            if marks:
                self.rows.executemany(
                    "INSERT OR REPLACE INTO record_marks VALUES (?, ?, ?, ?, ?)",
                    [(*partition, *mark) for partition, mark in marks.items()],
                )
            self.rows.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self.rollback()
            raise UnavailableError(f"the state {self.path} cannot be written: {error}") from error

    def rollback(self) -> None:
        if self.rows.in_transaction:
            self.rows.execute("ROLLBACK")

    def reading(self) -> sqlite3.Connection:
        """Return a read-only connection that sees committed rows; it may be used by one thread at a time."""
        connection = _open(self.path)
        connection.execute("PRAGMA query_only = ON")
        return connection

    def digest(self) -> str:
        """Return a hash over all rows except those about the log: equal states have equal digests."""
        digest = hashlib.sha256()
        for line in self.dump():
            digest.update(line.encode())
        return digest.hexdigest()

    def dump(self) -> Iterator[str]:
        """Yield every row as text, table by table, in key order."""
        tables = self.rows.execute(
            f"SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN {_NO_STATE} ORDER BY name"  # noqa: S608
        ).fetchall()
        for (table,) in tables:
            columns = ", ".join(row[1] for row in self.rows.execute(f"PRAGMA table_info({table})"))
            for row in self.rows.execute(f"SELECT {columns} FROM {table} ORDER BY {columns}"):  # noqa: S608
                yield f"{table} {row!r}\n"

    def close(self) -> None:
        self.rows.close()


def remove(path: Path) -> None:
    """Delete a SQLite file and its -wal and -shm files."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA secure_delete = ON")  # see sqlite_purge for what this leaves
    return connection
