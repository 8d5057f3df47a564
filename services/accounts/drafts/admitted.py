"""The table of pushes that were sent without an approval within the last hour, by their senders, in SQLite."""

import sqlite3
from typing import NamedTuple

from protos.accounts.v1.drafts_pb2 import PushAdmitted
from protos.runtime.v1.log_pb2 import Meta
from services.domain.accounts.approval import COUNTED_MS

ADMITTED_DDL = """
CREATE TABLE admitted (
  push_key BLOB NOT NULL, appkey TEXT NOT NULL, sender TEXT NOT NULL, team_id TEXT NOT NULL, time_ms INTEGER NOT NULL,
  devices INTEGER NOT NULL, PRIMARY KEY (push_key, appkey)) WITHOUT ROWID;
CREATE INDEX admitted_of_senders ON admitted (sender, appkey, time_ms, devices);
CREATE INDEX admitted_times ON admitted (time_ms);
"""
MAX_ADMITTED = 256
"""Rows kept of one sender and app. Beyond them the oldest two become one, which counts as long as the later."""


class EarlierDevices(NamedTuple):
    """The devices that a sender's pushes of the last hour have reached, of one app of a team."""

    appkey: str
    team_id: str
    devices: int


class AdmittedTable:
    """Admitted pushes over one connection; used in the thread of the follower alone."""

    def __init__(self, rows: sqlite3.Connection) -> None:
        self._rows = rows

    def put_admitted(self, admitted: PushAdmitted, meta: Meta) -> None:
        """Store a push that was admitted, in place of the one with its key, and delete those that count no more."""
        self._rows.execute("DELETE FROM admitted WHERE time_ms <= ?", (meta.time_ms - COUNTED_MS,))
        for app in admitted.apps:
            row = (admitted.push_key, app.appkey, admitted.sender, app.team_id, meta.time_ms, app.devices)
            self._rows.execute("INSERT OR REPLACE INTO admitted VALUES (?, ?, ?, ?, ?, ?)", row)
            self._merge_oldest(admitted.sender, app.appkey)

    def _merge_oldest(self, sender: str, appkey: str) -> None:
        of_pair = "FROM admitted WHERE sender = ? AND appkey = ?"
        (count,) = self._rows.execute(f"SELECT count(*) {of_pair}", (sender, appkey)).fetchone()
        if count <= MAX_ADMITTED:
            return
        oldest = f"SELECT push_key, devices {of_pair} ORDER BY time_ms, push_key LIMIT 2"
        (first, devices), (second, _) = self._rows.execute(oldest, (sender, appkey)).fetchall()
        self._rows.execute("DELETE FROM admitted WHERE push_key = ? AND appkey = ?", (first, appkey))
        raised = "UPDATE admitted SET devices = devices + ? WHERE push_key = ? AND appkey = ?"
        self._rows.execute(raised, (devices, second, appkey))

    def is_admitted(self, push_key: bytes) -> bool:
        row = self._rows.execute("SELECT 1 FROM admitted WHERE push_key = ? LIMIT 1", (push_key,)).fetchone()
        return row is not None

    def earlier_devices(self, sender: str, now_ms: int, but: bytes) -> list[EarlierDevices]:
        """Return the devices of the sender's pushes within the last hour, but of the one with the key `but`."""
        rows = self._rows.execute(
            "SELECT appkey, team_id, sum(devices) FROM admitted"
            " WHERE sender = ? AND time_ms > ? AND push_key <> ? GROUP BY appkey, team_id",
            (sender, now_ms - COUNTED_MS, but),
        )
        return [EarlierDevices(*row) for row in rows]
