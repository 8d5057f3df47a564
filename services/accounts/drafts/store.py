"""Tables in SQLite: the drafts, and the pushes of the last hour that were sent without an approval."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from protos.accounts.v1.drafts_pb2 import (
    Draft,
    DraftFact,
    DraftStatus,
    DraftSubmitted,
    ListDraftsRequest,
    PushAdmitted,
)
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.accounts.state import DraftState
from services.domain.approval import COUNTED_MS
from services.domain.push_summary import push_text, push_title

DRAFTS_DDL = """
CREATE TABLE drafts (
  draft_id TEXT PRIMARY KEY, team_id TEXT NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
  status INTEGER NOT NULL, draft BLOB NOT NULL, origin BLOB NOT NULL, decided_by TEXT NOT NULL,
  decided_ms INTEGER NOT NULL, reason TEXT NOT NULL, words TEXT NOT NULL);
CREATE INDEX drafts_of_teams ON drafts (team_id, created_ms DESC, draft_id, status, expires_ms, words);
CREATE INDEX drafts_ended ON drafts (iif(status = 1, expires_ms, decided_ms), draft_id) WHERE status <> 2;
CREATE INDEX drafts_approved ON drafts (draft_id) WHERE status = 2;
"""
_ENDS_MS = "iif(status = 1, expires_ms, decided_ms)"
"""The time at which a draft ended or is to expire, as `drafts_ended` has it: an index of drafts with `status <> 2`."""

_COLUMNS = "draft, status, origin, decided_by, decided_ms, reason"
ENDED_KEPT_MS = 400 * 86_400_000
"""How long a draft is kept after it expired, or after the decision: rejected, withdrawn, or approved if it was sent."""

MAX_DELETED = 20
"""Upper bound of the ended drafts that one new draft deletes, so that it waits for few."""


class DraftTable:
    """Drafts over one connection; used in the thread of the follower alone."""

    def __init__(self, rows: sqlite3.Connection) -> None:
        self._rows = rows

    def put_draft(self, draft: Draft, meta: Meta) -> None:
        self._delete_ended(meta.time_ms - ENDED_KEPT_MS)
        self._rows.execute(
            "INSERT INTO drafts VALUES (?, ?, ?, ?, ?, ?, ?, '', 0, '', ?) ON CONFLICT DO UPDATE SET"
            " expires_ms = excluded.expires_ms, draft = excluded.draft, origin = excluded.origin,"
            " words = excluded.words"
            " WHERE drafts.status = excluded.status",
            (
                draft.draft_id,
                draft.team_id,
                draft.created_ms,
                draft.expires_ms,
                DraftStatus.DRAFT_STATUS_WAITING,
                draft.SerializeToString(deterministic=True),
                meta.origin.SerializeToString(deterministic=True),
                _words(draft),
            ),
        )

    def forget_in_drafts(self, until_ms: int, left: Callable[[DraftFact], DraftFact | None]) -> None:
        """Replace each draft changed up to a time by what `left` returns for a fact with it; None: it stays."""
        rows = self._rows.execute("SELECT draft_id, draft FROM drafts").fetchall()
        for draft_id, value in rows:
            draft = Draft.FromString(value)
            if max(draft.created_ms, draft.changed_ms) > until_ms:
                continue
            changed = left(DraftFact(submitted=DraftSubmitted(draft=draft)))
            if changed is not None:
                draft = changed.submitted.draft
                self._rows.execute(
                    "UPDATE drafts SET draft = ?, words = ? WHERE draft_id = ?",
                    (draft.SerializeToString(deterministic=True), _words(draft), draft_id),
                )

    def _delete_ended(self, until_ms: int) -> None:
        """Delete the first MAX_DELETED drafts that ended until this time; an approved one ends only once it is sent.

        The times of the topic's facts alone decide which, so a replay deletes the same.
        """
        self._rows.execute(
            "DELETE FROM drafts WHERE draft_id IN (SELECT draft_id FROM drafts"  # noqa: S608
            f" WHERE status <> 2 AND {_ENDS_MS} <= ? ORDER BY {_ENDS_MS}, draft_id LIMIT ?)",
            (until_ms, MAX_DELETED),
        )

    def end_draft(
        self,
        draft_id: str,
        before: "DraftStatus.ValueType",
        after: "DraftStatus.ValueType",
        meta: Meta,
        reason: str = "",
    ) -> None:
        self._rows.execute(
            "UPDATE drafts SET status = ?, decided_by = ?, decided_ms = ?, reason = ?"
            " WHERE draft_id = ? AND status = ?",
            (after, meta.origin.actor, meta.time_ms, reason, draft_id, before),
        )

    def expire_draft(self, draft_id: str) -> None:
        self._rows.execute(
            "UPDATE drafts SET status = ?, decided_ms = expires_ms WHERE draft_id = ? AND status = ?",
            (DraftStatus.DRAFT_STATUS_EXPIRED, draft_id, DraftStatus.DRAFT_STATUS_WAITING),
        )

    def note_sent(self, draft_id: str) -> None:
        self._rows.execute(
            "UPDATE drafts SET status = ? WHERE draft_id = ? AND status = ?",
            (DraftStatus.DRAFT_STATUS_SENT, draft_id, DraftStatus.DRAFT_STATUS_APPROVED),
        )

    def draft(self, draft_id: str) -> DraftState | None:
        row = self._rows.execute(f"SELECT {_COLUMNS} FROM drafts WHERE draft_id = ?", (draft_id,)).fetchone()  # noqa: S608
        return _kept(row) if row else None

    def drafts(self, asked: ListDraftsRequest, now_ms: int) -> list[DraftState]:
        """Return a page of the teams' drafts, the newest first. A draft waits if it does so at `now_ms`.

        An index has all columns by which drafts are chosen and sorted. The contents, up to 700 KB each, are read for
        the page alone.
        """
        waits = f"(status = 1 AND expires_ms > {now_ms:d})"
        only = f" AND {waits}" if asked.waiting_only else ""
        first = f"{waits} DESC, " if asked.waiting_first else ""
        page = self._rows.execute(
            f"SELECT draft_id FROM drafts WHERE team_id IN ({', '.join('?' * len(asked.team_ids))}){only}"  # noqa: S608
            f" AND instr(words, ?) ORDER BY {first}created_ms DESC, draft_id LIMIT ? OFFSET ?",
            (*asked.team_ids, asked.words.casefold(), asked.limit, asked.offset),
        ).fetchall()
        return [draft for (draft_id,) in page if (draft := self.draft(draft_id))]

    def expired(self, since_ms: int, now_ms: int, limit: int) -> list[Draft]:
        """Return drafts that waited until a time after `since_ms` and up to now, and are not noted as expired."""
        rows = self._rows.execute(
            f"SELECT draft FROM drafts WHERE status = 1 AND status <> 2 AND {_ENDS_MS} > ? AND {_ENDS_MS} <= ?"  # noqa: S608
            f" ORDER BY {_ENDS_MS}, draft_id LIMIT ?",
            (since_ms, now_ms, limit),
        )
        return [Draft.FromString(draft) for (draft,) in rows]

    def next_expiry_ms(self, since_ms: int) -> int | None:
        """Return the first time after `since_ms` until which a draft waits that is not noted as expired."""
        row = self._rows.execute(
            f"SELECT {_ENDS_MS} FROM drafts WHERE status = 1 AND status <> 2 AND {_ENDS_MS} > ?"  # noqa: S608
            f" ORDER BY {_ENDS_MS} LIMIT 1",
            (since_ms,),
        ).fetchone()
        return row[0] if row else None

    def approved(self, limit: int) -> list[DraftState]:
        """Return drafts that are approved and not sent yet."""
        rows = self._rows.execute(
            f"SELECT {_COLUMNS} FROM drafts WHERE status = 2 ORDER BY draft_id LIMIT ?",  # noqa: S608
            (limit,),
        )
        return [_kept(row) for row in rows]


def draft_words(draft: Draft) -> tuple[str, str]:
    """Return the title and the beginning of the text, each of the first push of the draft that has one."""
    messages = [push.message for push in draft.task.pushes]
    titles, texts = map(push_title, messages), map(push_text, messages)
    return next(filter(None, titles), ""), next(filter(None, texts), "")


def _words(draft: Draft) -> str:
    return "\n".join(draft_words(draft)).casefold()


def _kept(row: Sequence[Any]) -> DraftState:
    draft, status, origin, decided_by, decided_ms, reason = row
    return DraftState(
        Draft.FromString(draft),
        DraftStatus.ValueType(status),
        Origin.FromString(origin),
        decided_by,
        decided_ms,
        reason,
    )


# The table of pushes that were sent without an approval within the last hour, by their senders, in SQLite.

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
    """How many devices of one app, which belongs to the team, a sender's pushes of the last hour have reached."""

    appkey: str
    team_id: str
    devices: int


class AdmittedTable:
    """Admitted pushes over one connection; used in the thread of the follower alone."""

    def __init__(self, rows: sqlite3.Connection) -> None:
        self._rows = rows

    def put_admitted(self, admitted: PushAdmitted, meta: Meta) -> None:
        """Store an admitted push, in place of the one with its key, and delete the pushes that no longer count."""
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
        """Return the devices of the sender's pushes within the last hour, without the push with the key `but`."""
        rows = self._rows.execute(
            "SELECT appkey, team_id, sum(devices) FROM admitted"
            " WHERE sender = ? AND time_ms > ? AND push_key <> ? GROUP BY appkey, team_id",
            (sender, now_ms - COUNTED_MS, but),
        )
        return [EarlierDevices(*row) for row in rows]
