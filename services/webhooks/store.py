"""What webhooks remembers across restarts, in SQLite: offsets of queues, their failures, and the latest attempts."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from services.errors import UnavailableError
from services.log.identity import check_log_identity, forget_log_identity, noted_log_identity
from services.log.port import Log, Partition
from services.process.logs import logger
from services.replica.sqlite_store import SqliteStore, remove
from services.replica.store import transaction
from services.webhooks.notices.store import FILE as NOTICES_FILE
from services.webhooks.settings import ROLE_NAME

_DDL = """
CREATE TABLE lanes (
  lane TEXT PRIMARY KEY, webhook TEXT NOT NULL, failing_since_ms INTEGER NOT NULL, paused_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE offsets_of_lanes (
  lane TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL, until INTEGER,
  PRIMARY KEY (lane, topic, partition)) WITHOUT ROWID;
CREATE TABLE attempts (
  number INTEGER PRIMARY KEY, webhook TEXT NOT NULL, message_id TEXT NOT NULL, time_ms INTEGER NOT NULL,
  took_ms INTEGER NOT NULL, events INTEGER NOT NULL, status INTEGER NOT NULL, answer TEXT NOT NULL);
CREATE INDEX attempts_of_webhooks ON attempts (webhook, number);
"""
# A lane is a queue: the names in the file stay.
# The state is not folded from the log: SqliteStore replaces a file with another schema by an empty one, so a change of
# this one would lose the offsets. A later table gets a CREATE TABLE IF NOT EXISTS of its own.

_FILE = "webhooks.sqlite"

KEPT_ATTEMPTS = 200
"""Latest attempts that are kept of each webhook."""


def open_store(directory: Path, log: Log) -> "WebhookStore":
    """Open the store in the role's directory; one that belongs to another log is replaced by an empty one."""
    known = noted_log_identity(directory)
    if known and log.identity and known != log.identity:
        logger.warning("the offsets of webhooks are those of another log, and are dropped", former=known)
        for file in directory.glob("*.snapshot"):
            file.unlink()
        for name in (_FILE, NOTICES_FILE):
            remove(directory / name)
        forget_log_identity(directory)
    check_log_identity(directory, log, ROLE_NAME)
    return WebhookStore(directory)


class DeliveryAttempt(NamedTuple):
    """A request to a receiver. `status`: the HTTP status, 0 for no answer. `answer`: the status, or why it failed."""

    message_id: str
    time_ms: int
    took_ms: int
    events: int
    status: int
    answer: str


class StoredQueue(NamedTuple):
    """A queue as it was left: offsets, their ends if it has some, and since when its receiver fails or is given up."""

    queue_id: str
    webhook_id: str
    starts: Mapping[Partition, int]
    until: Mapping[Partition, int] | None
    failing_since_ms: int
    paused_ms: int


class WebhookStore:
    """The tables; used in one thread."""

    def __init__(self, directory: Path) -> None:
        self._store = SqliteStore(directory / _FILE, _DDL)

    def queues(self) -> list[StoredQueue]:
        """Return every queue, by its id."""
        rows = self._store.rows.execute("SELECT lane, webhook, failing_since_ms, paused_ms FROM lanes ORDER BY lane")
        return [self._queue(*row) for row in rows.fetchall()]

    def add(
        self, queue_id: str, webhook_id: str, starts: Mapping[Partition, int], until: Mapping[Partition, int] | None
    ) -> None:
        """Store a new queue, in place of one with its id that an attempt has left."""
        rows = [(queue_id, *p, start, until[p] if until is not None else None) for p, start in starts.items()]
        with self._changed_rows() as changed:
            changed.execute("INSERT OR REPLACE INTO lanes VALUES (?, ?, 0, 0)", (queue_id, webhook_id))
            changed.executemany("INSERT OR REPLACE INTO offsets_of_lanes VALUES (?, ?, ?, ?, ?)", rows)

    def remove(self, queue_id: str) -> None:
        with self._changed_rows() as changed:
            changed.execute("DELETE FROM offsets_of_lanes WHERE lane = ?", (queue_id,))
            changed.execute("DELETE FROM lanes WHERE lane = ?", (queue_id,))

    def forget_attempts(self, webhook_id: str) -> None:
        with self._changed_rows() as changed:
            changed.execute("DELETE FROM attempts WHERE webhook = ?", (webhook_id,))

    def commit(self, queue_id: str, offsets: Mapping[Partition, int], attempt: DeliveryAttempt | None = None) -> None:
        """Store the offsets behind what was delivered, and the request that delivered it; the receiver works."""
        rows = [(queue_id, *partition, offset) for partition, offset in offsets.items()]
        with self._changed_rows() as changed:
            changed.executemany(
                "INSERT INTO offsets_of_lanes VALUES (?, ?, ?, ?, NULL) ON CONFLICT DO UPDATE SET next = excluded.next",
                rows,
            )
            if attempt is not None:
                changed.execute("UPDATE lanes SET failing_since_ms = 0, paused_ms = 0 WHERE lane = ?", (queue_id,))
                _add_attempt(changed, queue_id, attempt)

    def note_failure(
        self, queue_id: str, failing_since_ms: int, paused_ms: int, attempt: DeliveryAttempt | None
    ) -> None:
        """Store since when the receiver fails and is given up (0: it is not), and the request that has failed."""
        with self._changed_rows() as changed:
            sql = "UPDATE lanes SET failing_since_ms = ?, paused_ms = ? WHERE lane = ?"
            changed.execute(sql, (failing_since_ms, paused_ms, queue_id))
            if attempt is not None:
                _add_attempt(changed, queue_id, attempt)

    def attempts(self, webhook_id: str) -> list[DeliveryAttempt]:
        """Return the latest attempts of a webhook, the newest first."""
        query = (
            "SELECT message_id, time_ms, took_ms, events, status, answer FROM attempts WHERE webhook = ?"
            " ORDER BY number DESC LIMIT ?"
        )
        return [DeliveryAttempt(*row) for row in self._store.rows.execute(query, (webhook_id, KEPT_ATTEMPTS))]

    def close(self) -> None:
        self._store.close()

    def _queue(self, queue_id: str, webhook_id: str, failing_since_ms: int, paused_ms: int) -> StoredQueue:
        query = "SELECT topic, partition, next, until FROM offsets_of_lanes WHERE lane = ?"
        rows = self._store.rows.execute(query, (queue_id,)).fetchall()
        until = {Partition(t, p): end for t, p, _, end in rows if end is not None}
        starts = {Partition(t, p): start for t, p, start, _ in rows}
        return StoredQueue(queue_id, webhook_id, starts, until or None, failing_since_ms, paused_ms)

    @contextmanager
    def _changed_rows(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for changes that are committed together. UnavailableError: they cannot be written."""
        try:
            with transaction(self._store):
                yield self._store.rows
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"the state of webhooks cannot be written: {error}") from error
        self._store.commit({})


def _add_attempt(rows: sqlite3.Connection, queue_id: str, attempt: DeliveryAttempt) -> None:
    """Add an attempt of the queue's webhook, and delete those that are too old to be kept."""
    found = rows.execute("SELECT webhook FROM lanes WHERE lane = ?", (queue_id,)).fetchone()
    if found is None:  # the webhook is gone
        return
    (webhook_id,) = found
    rows.execute(
        "INSERT INTO attempts (webhook, message_id, time_ms, took_ms, events, status, answer)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (webhook_id, *attempt),
    )
    rows.execute(
        "DELETE FROM attempts WHERE webhook = ? AND number <= (SELECT number FROM attempts WHERE webhook = ?"
        " ORDER BY number DESC LIMIT 1 OFFSET ?)",
        (webhook_id, webhook_id, KEPT_ATTEMPTS),
    )
