"""The table of drafts in SQLite."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from protos.accounts.v1.drafts_pb2 import Draft, DraftStatus
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.accounts.state import KeptDraft

DRAFTS_DDL = """
CREATE TABLE drafts (
  draft_id TEXT PRIMARY KEY, team_id TEXT NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
  status INTEGER NOT NULL, draft BLOB NOT NULL, origin BLOB NOT NULL, decided_by TEXT NOT NULL,
  decided_ms INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE INDEX drafts_of_teams ON drafts (team_id, created_ms);
CREATE INDEX drafts_approved ON drafts (draft_id) WHERE status = 2;
"""
_COLUMNS = "draft, status, origin, decided_by, decided_ms, reason"


class DraftTable:
    """Drafts over one connection; used in the thread of the follower alone."""

    def __init__(self, rows: sqlite3.Connection) -> None:
        self._rows = rows

    def put_draft(self, draft: Draft, origin: Origin) -> None:
        self._rows.execute(
            "INSERT INTO drafts VALUES (?, ?, ?, ?, ?, ?, ?, '', 0, '') ON CONFLICT DO UPDATE SET"
            " expires_ms = excluded.expires_ms, draft = excluded.draft, origin = excluded.origin"
            " WHERE drafts.status = excluded.status",
            (
                draft.draft_id,
                draft.team_id,
                draft.created_ms,
                draft.expires_ms,
                DraftStatus.DRAFT_STATUS_WAITING,
                draft.SerializeToString(deterministic=True),
                origin.SerializeToString(deterministic=True),
            ),
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

    def note_sent(self, draft_id: str) -> None:
        self._rows.execute(
            "UPDATE drafts SET status = ? WHERE draft_id = ? AND status = ?",
            (DraftStatus.DRAFT_STATUS_SENT, draft_id, DraftStatus.DRAFT_STATUS_APPROVED),
        )

    def draft(self, draft_id: str) -> KeptDraft | None:
        row = self._rows.execute(f"SELECT {_COLUMNS} FROM drafts WHERE draft_id = ?", (draft_id,)).fetchone()  # noqa: S608
        return _kept(row) if row else None

    def drafts(
        self, team_ids: Sequence[str], now_ms: int, *, waiting_only: bool, waiting_first: bool, offset: int, limit: int
    ) -> list[KeptDraft]:
        """Return the teams' drafts, the newest first; only those that wait at this time, or those before all others."""
        waits = f"(status = 1 AND expires_ms > {now_ms:d})"
        only = f" AND {waits}" if waiting_only else ""
        first = f"{waits} DESC, " if waiting_first else ""
        rows = self._rows.execute(
            f"SELECT {_COLUMNS} FROM drafts WHERE team_id IN ({', '.join('?' * len(team_ids))}){only}"  # noqa: S608
            f" ORDER BY {first}created_ms DESC, draft_id LIMIT ? OFFSET ?",
            (*team_ids, limit, offset),
        )
        return [_kept(row) for row in rows]

    def approved(self, limit: int) -> list[KeptDraft]:
        """Return drafts that are approved and not sent yet."""
        rows = self._rows.execute(
            f"SELECT {_COLUMNS} FROM drafts WHERE status = 2 ORDER BY draft_id LIMIT ?",  # noqa: S608
            (limit,),
        )
        return [_kept(row) for row in rows]


def _kept(row: Sequence[Any]) -> KeptDraft:
    draft, status, origin, decided_by, decided_ms, reason = row
    return KeptDraft(
        Draft.FromString(draft),
        DraftStatus.ValueType(status),
        Origin.FromString(origin),
        decided_by,
        decided_ms,
        reason,
    )
