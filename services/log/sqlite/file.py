"""The SQLite file of the embedded log: its schema, its lock and its rows, trimming, and copies."""

import fcntl
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, NamedTuple

from services.errors import CarillonError, ConflictError, UnavailableError
from services.log.port import NewRecord, Partition, Record, TrimmedError, trimmed
from services.log.topics import Topics
from services.process.durable import make_durable

# Trimming of the embedded log: old records are deleted from its file, from the first one on.
#
# Pages that this frees are used again by the next appends, so the file stops growing; it does not become smaller.

_STEP_RECORDS = 500
_STEP_BYTES = 256 * 1024


def stored_begins(connection: sqlite3.Connection) -> dict[Partition, int]:
    """Return the first offset of each trimmed partition; empty for a file of an earlier version."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'begins'").fetchone():
        return {}
    rows = connection.execute("SELECT topic, partition, begin FROM begins")
    return {Partition(topic, number): begin for topic, number, begin in rows}


def check_begin(connection: sqlite3.Connection, partition: Partition, start: int) -> None:
    """Check that the records from `start` on were not trimmed. TrimmedError: some were."""
    begin = stored_begins(connection).get(partition, 0)
    if start < begin:
        raise TrimmedError(trimmed(partition, start, begin))


def trim_step(connection: sqlite3.Connection, partition: Partition, before: int) -> tuple[int, int]:
    """Delete the first records before an offset in one transaction of bounded size.

    Return the partition's new first offset, and the bytes of the deleted records.
    """
    place = (partition.topic, partition.number)
    rows = connection.execute(
        'SELECT "offset", length(key) + length(value) FROM records WHERE topic = ? AND partition = ? AND "offset" < ?'
        ' ORDER BY "offset" LIMIT ?',
        (*place, before, _STEP_RECORDS + 1),
    ).fetchall()
    begin, size = before, 0
    for index, (offset, length) in enumerate(rows):
        if index == _STEP_RECORDS or (size and size + length > _STEP_BYTES):
            begin = offset
            break
        size += length
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute('DELETE FROM records WHERE topic = ? AND partition = ? AND "offset" < ?', (*place, begin))
        connection.execute(
            "INSERT INTO begins VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET begin = excluded.begin", (*place, begin)
        )
    return begin, size


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
CREATE TABLE IF NOT EXISTS begins (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, begin INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS identity (id TEXT NOT NULL);
"""
PAGE_BYTES = 4096
_READ_BYTES = 16 * 1024 * 1024


class RecordPage(NamedTuple):
    """Records read at once, and the partitions that were read to their end."""

    records: list[Record]
    exhausted: list[Partition]


def lock(path: Path) -> IO[bytes]:
    """Lock the file for this process until the lock is closed or the process ends. ConflictError: it is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_file = path.with_name(f"{path.name}.lock").open("wb")
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock_file.close()
        raise ConflictError(f"the event log {path} is open in another process") from error
    return lock_file


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
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
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA secure_delete = ON")
            connection.executescript(_SCHEMA)
            connection.execute(
                "INSERT INTO identity SELECT ? WHERE NOT EXISTS (SELECT 1 FROM identity)", (secrets.token_hex(16),)
            )
    except sqlite3.Error as error:
        raise UnavailableError(f"the event log {path} cannot be opened: {error}") from error
    return connection


def identity(connection: sqlite3.Connection) -> str:
    """Return the id that the file got when it was created; "" where only earlier versions have written it."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'identity'").fetchone():
        return ""
    found: str = connection.execute("SELECT id FROM identity").fetchone()[0]
    return found


def stored_ends(connection: sqlite3.Connection) -> tuple[int, dict[Partition, int]]:
    """Return the file's version, which each commit of another connection changes, and ends no older than it."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    rows = connection.execute('SELECT topic, partition, "end" FROM ends').fetchall()
    return version, {Partition(topic, partition): end for topic, partition, end in rows}


def changed_ends(connection: sqlite3.Connection, known: int) -> tuple[int, dict[Partition, int] | None]:
    """Return the file's version and all ends, or None for the ends while the version is still `known`."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return (version, None) if version == known else stored_ends(connection)


def insert(
    connection: sqlite3.Connection,
    topics: Topics,
    new_records: Sequence[NewRecord],
    offsets: Sequence[int],
    ends: Mapping[Partition, int],
) -> None:
    """Insert the records at the offsets, and the new ends, in one transaction; compact compacted topics.

    Where an empty value removes its key, it is stored without it, so that nothing is left of the key.
    """
    rows = [
        (r.topic, r.partition, offset, b"" if topics[r.topic].removable and not r.value else r.key, r.value)
        for r, offset in zip(new_records, offsets, strict=True)
    ]
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
        connection.executemany(
            'INSERT INTO ends VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "end" = excluded."end"',
            [(p.topic, p.number, end) for p, end in ends.items()],
        )
        for new_record, (topic, partition, offset, key, _) in zip(new_records, rows, strict=True):
            if topics[topic].compacted:
                if key != new_record.key:
                    _delete_latest(connection, topic, partition, new_record.key)
                _compact(connection, topic, partition, offset, key)


def rewrite_version(connection: sqlite3.Connection) -> None:
    """Write the user version, which is the number of partitions, once more: a write that changes nothing."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version}")


def select(connection: sqlite3.Connection, starts: Mapping[Partition, int], limit: int) -> RecordPage:
    """Return the records from the starts on, partition by partition: at most `limit`, and about 16 MiB.

    TrimmedError: a start lies before the first record of its partition.
    """
    page = RecordPage([], [])
    size = 0
    for partition, start in starts.items():
        count = len(page.records)
        cursor = connection.execute(
            'SELECT "offset", key, value FROM records WHERE topic = ? AND partition = ? AND "offset" >= ?'
            ' ORDER BY "offset" LIMIT ?',
            (partition.topic, partition.number, start, limit - count),
        )
        for row in cursor:
            page.records.append(Record(partition.topic, partition.number, *row))
            size += len(row[2])
            if size > _READ_BYTES:
                break
        cursor.close()
        if count == len(page.records) or page.records[count].offset > start:
            check_begin(connection, partition, start)
        if size > _READ_BYTES or len(page.records) >= limit:
            break
        page.exhausted.append(partition)
    return page


def _compact(connection: sqlite3.Connection, topic: str, partition: int, offset: int, key: bytes) -> None:
    """Delete the record that the one at `offset` replaces."""
    _delete_latest(connection, topic, partition, key)
    connection.execute("INSERT OR REPLACE INTO latest VALUES (?, ?, ?, ?)", (topic, partition, key, offset))


def _delete_latest(connection: sqlite3.Connection, topic: str, partition: int, key: bytes) -> None:
    """Delete the last record of a key, and the key."""
    where = (topic, partition, key)
    row = connection.execute(
        'SELECT "offset" FROM latest WHERE topic = ? AND partition = ? AND key = ?', where
    ).fetchone()
    if row:
        connection.execute(
            'DELETE FROM records WHERE topic = ? AND partition = ? AND "offset" = ?', (topic, partition, row[0])
        )
        connection.execute("DELETE FROM latest WHERE topic = ? AND partition = ? AND key = ?", where)


# Copies of the embedded log, which may be taken while a process writes it.


def copy_log(source: Path, target: Path) -> dict[Partition, int]:
    """Copy the log, as it is at one moment during the call, to a new file; checked and durable on return.

    Return the first offset of each partition of the copy from which records were removed, which are in the archive.
    The process that writes the log goes on meanwhile. The copy is one file without a write-ahead log beside it.
    CarillonError: the source cannot be read or is damaged, or the target cannot be written.
    """
    try:
        target.touch(mode=0o600, exist_ok=False)
        with closing(connect(source, read_only=True)) as reading, closing(sqlite3.connect(target)) as copy:
            reading.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            begins = stored_begins(copy)
        for path in (target, target.parent):
            make_durable(path)
    except (OSError, sqlite3.Error) as error:
        raise CarillonError(f"the event log {source} cannot be copied to {target}: {error}") from error
    if verdict != "ok":
        raise CarillonError(f"the event log {source} is damaged: {verdict}")
    return begins
