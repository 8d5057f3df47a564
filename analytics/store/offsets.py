"""The offsets file of the ingestion: the next offset of each partition, and the batch that is being inserted.

A batch is noted before its first row is inserted and removed after its last. If the process dies in between, the next
start reads the same records again and inserts them with the same tokens, and ClickHouse drops inserts that it has made
already.
"""

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from services.log.identity import forget_log_identity
from services.log.port import Partition, RecordMark
from services.replica.sqlite_store import SqliteStore

_DDL = """
CREATE TABLE batch (
  topic TEXT NOT NULL, partition INTEGER NOT NULL, first INTEGER NOT NULL, next INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)) WITHOUT ROWID;
CREATE TABLE ingester (identity TEXT NOT NULL);
"""


class Range(NamedTuple):
    """Offsets of one partition, from `first` up to and not including `next`."""

    first: int
    next: int


Batch = Mapping[Partition, Range]


class Offsets:
    """One SQLite file, used from one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._store = SqliteStore(path, _DDL)
        self._store.rows.execute("PRAGMA synchronous = FULL")

    def identity(self) -> str | None:
        """Return the ingester's identity, or None before the first `restart`."""
        row = self._store.rows.execute("SELECT identity FROM ingester").fetchone()
        return row[0] if row else None

    def restart(self) -> str:
        """Delete both identities (ingester, log), offsets, epochs, marks and pending batch; return a new identity."""
        forget_log_identity(self._store.path.parent)
        identity = secrets.token_hex(8)
        self._store.begin()
        for table in ("batch", "ingester", "offsets", "epochs", "record_marks"):
            self._store.rows.execute(f"DELETE FROM {table}")  # noqa: S608
        self._store.rows.execute("INSERT INTO ingester VALUES (?)", (identity,))
        self._store.commit({})
        return identity

    def next_offsets(self) -> dict[Partition, int]:
        """Return the next offset of each partition; valid while no batch is pending."""
        return self._store.offsets()

    def marks(self) -> dict[Partition, RecordMark]:
        """Return the marks of the last ingested records."""
        return self._store.marks()

    def epochs(self) -> dict[Partition, int]:
        """Return the highest epoch of each partition before its next offset."""
        return self._store.epochs()

    def pending(self) -> Batch:
        """Return the batch that was begun and not ended, or an empty one."""
        rows = self._store.rows.execute("SELECT topic, partition, first, next FROM batch")
        return {Partition(topic, number): Range(first, following) for topic, number, first, following in rows}

    def begin(self, batch: Batch) -> None:
        """Note durably that a batch is about to be inserted."""
        self._store.begin()
        self._store.rows.executemany(
            "INSERT INTO batch VALUES (?, ?, ?, ?)", [(*partition, *range_) for partition, range_ in batch.items()]
        )
        self._store.commit({})

    def end(self, batch: Batch, epochs: Mapping[Partition, int], marks: Mapping[Partition, RecordMark]) -> None:
        """Note durably that the batch is inserted, with its next offsets, highest epochs and marks of last records."""
        self._store.begin()
        self._store.rows.execute("DELETE FROM batch")
        for partition, epoch in epochs.items():
            self._store.set_epoch(partition, epoch)
        self._store.commit({partition: range_.next for partition, range_ in batch.items()}, marks)

    def close(self) -> None:
        self._store.close()


def insert_token(identity: str, table: str, batch: Batch) -> str:
    """Return the deduplication token of an insert: the same for the same ingester, table and ranges."""
    ranges = ",".join(
        f"{partition.topic}:{partition.number}:{batch[partition].first}-{batch[partition].next}"
        for partition in sorted(batch)
    )
    return f"{identity}:{table}:{hashlib.blake2b(ranges.encode(), digest_size=16).hexdigest()}"
