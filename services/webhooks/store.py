"""What webhooks remembers across restarts, in SQLite: offsets of lanes, their failures, and the latest attempts."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from services.log.port import Partition
from services.replica.sqlite_store import SqliteStore

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
# The state is not folded from the log: SqliteStore replaces a file with another schema by an empty one, so a change of
# this one would lose the offsets. A later table gets a CREATE TABLE IF NOT EXISTS of its own.

KEPT_ATTEMPTS = 200
"""Latest attempts that are kept of each webhook."""


class Attempt(NamedTuple):
    """A request to a receiver. `status`: the HTTP status, 0 for no answer. `answer`: the status, or why it failed."""

    message_id: str
    time_ms: int
    took_ms: int
    events: int
    status: int
    answer: str


class StoredLane(NamedTuple):
    """A lane as it was left: offsets, their ends if it has some, and since when its receiver fails or is given up."""

    lane_id: str
    webhook_id: str
    starts: Mapping[Partition, int]
    until: Mapping[Partition, int] | None
    failing_since_ms: int
    paused_ms: int


class WebhookStore:
    """The tables; used in one thread."""

    def __init__(self, directory: Path) -> None:
        self._store = SqliteStore(directory / "webhooks.sqlite", _DDL)

    def lanes(self) -> list[StoredLane]:
        """Return every lane, by its id."""
        rows = self._store.rows.execute("SELECT lane, webhook, failing_since_ms, paused_ms FROM lanes ORDER BY lane")
        return [self._lane(*row) for row in rows.fetchall()]

    def add(
        self, lane_id: str, webhook_id: str, starts: Mapping[Partition, int], until: Mapping[Partition, int] | None
    ) -> None:
        """Store a new lane."""
        self._store.begin()
        self._store.rows.execute("INSERT INTO lanes VALUES (?, ?, 0, 0)", (lane_id, webhook_id))
        self._store.rows.executemany(
            "INSERT INTO offsets_of_lanes VALUES (?, ?, ?, ?, ?)",
            [(lane_id, *p, start, until[p] if until is not None else None) for p, start in starts.items()],
        )
        self._store.commit({})

    def remove(self, lane_id: str) -> None:
        self._store.begin()
        self._store.rows.execute("DELETE FROM offsets_of_lanes WHERE lane = ?", (lane_id,))
        self._store.rows.execute("DELETE FROM lanes WHERE lane = ?", (lane_id,))
        self._store.commit({})

    def forget_attempts(self, webhook_id: str) -> None:
        self._store.begin()
        self._store.rows.execute("DELETE FROM attempts WHERE webhook = ?", (webhook_id,))
        self._store.commit({})

    def commit(self, lane_id: str, offsets: Mapping[Partition, int], attempt: Attempt | None = None) -> None:
        """Store the offsets behind what was delivered, and the request that delivered it; the receiver works."""
        self._store.begin()
        self._store.rows.executemany(
            "INSERT INTO offsets_of_lanes VALUES (?, ?, ?, ?, NULL) ON CONFLICT DO UPDATE SET next = excluded.next",
            [(lane_id, *partition, offset) for partition, offset in offsets.items()],
        )
        if attempt is not None:
            sql = "UPDATE lanes SET failing_since_ms = 0, paused_ms = 0 WHERE lane = ? AND failing_since_ms + paused_ms"
            self._store.rows.execute(sql, (lane_id,))
            self._add_attempt(lane_id, attempt)
        self._store.commit({})

    def note_failure(self, lane_id: str, failing_since_ms: int, paused_ms: int, attempt: Attempt | None) -> None:
        """Store since when the receiver fails and is given up (0: it is not), and the request that has failed."""
        self._store.begin()
        sql = "UPDATE lanes SET failing_since_ms = ?, paused_ms = ? WHERE lane = ?"
        self._store.rows.execute(sql, (failing_since_ms, paused_ms, lane_id))
        if attempt is not None:
            self._add_attempt(lane_id, attempt)
        self._store.commit({})

    def attempts(self, webhook_id: str) -> list[Attempt]:
        """Return the latest attempts of a webhook, the newest first."""
        query = (
            "SELECT message_id, time_ms, took_ms, events, status, answer FROM attempts WHERE webhook = ?"
            " ORDER BY number DESC LIMIT ?"
        )
        return [Attempt(*row) for row in self._store.rows.execute(query, (webhook_id, KEPT_ATTEMPTS))]

    def close(self) -> None:
        self._store.close()

    def _lane(self, lane_id: str, webhook_id: str, failing_since_ms: int, paused_ms: int) -> StoredLane:
        query = "SELECT topic, partition, next, until FROM offsets_of_lanes WHERE lane = ?"
        rows = self._store.rows.execute(query, (lane_id,)).fetchall()
        until = {Partition(t, p): end for t, p, _, end in rows if end is not None}
        starts = {Partition(t, p): start for t, p, start, _ in rows}
        return StoredLane(lane_id, webhook_id, starts, until or None, failing_since_ms, paused_ms)

    def _add_attempt(self, lane_id: str, attempt: Attempt) -> None:
        execute = self._store.rows.execute
        (webhook_id,) = execute("SELECT webhook FROM lanes WHERE lane = ?", (lane_id,)).fetchone()
        execute(
            "INSERT INTO attempts (webhook, message_id, time_ms, took_ms, events, status, answer)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (webhook_id, *attempt),
        )
        execute(
            "DELETE FROM attempts WHERE webhook = ? AND number <= (SELECT number FROM attempts WHERE webhook = ?"
            " ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (webhook_id, webhook_id, KEPT_ATTEMPTS),
        )
