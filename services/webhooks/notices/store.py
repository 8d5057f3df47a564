"""What the notices remember across restarts, in SQLite: drafts that wait, mails that no server took yet, the offset."""

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from protos.accounts.v1.drafts_pb2 import Draft
from services.domain.topics import DRAFTS
from services.errors import UnavailableError
from services.log.port import Partition
from services.replica.sqlite_store import SqliteStore
from services.replica.store import transaction

FILE = "notices.sqlite"
_PARTITION = Partition(DRAFTS.name, 0)
_DDL = """
CREATE TABLE drafts (draft_id TEXT PRIMARY KEY, draft BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE mails (
  mail_id TEXT PRIMARY KEY, draft_id TEXT NOT NULL, is_request INTEGER NOT NULL, created_ms INTEGER NOT NULL,
  address TEXT NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL, due_ms INTEGER NOT NULL, attempts INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX mails_due ON mails (due_ms, mail_id);
CREATE INDEX mails_of_drafts ON mails (draft_id) WHERE is_request = 1;
"""


class Mail(NamedTuple):
    """A mail to one person. The same fact makes the same `mail_id` again.

    `is_request`: it asks for an approval, and is not sent any more once the draft does not wait.
    """

    mail_id: str
    draft_id: str
    is_request: bool
    created_ms: int
    address: str
    subject: str
    text: str
    due_ms: int = 0
    attempts: int = 0


class NoticeStore:
    """The tables; used in one thread."""

    def __init__(self, directory: Path) -> None:
        self._store = SqliteStore(directory / FILE, _DDL)

    def offset(self) -> int | None:
        """Return the offset of the next record of `drafts`; None before the first one."""
        return self._store.offsets().get(_PARTITION)

    def waiting(self) -> dict[str, Draft]:
        """Return the drafts that wait, by their ids."""
        rows = self._store.rows.execute("SELECT draft_id, draft FROM drafts")
        return {draft_id: Draft.FromString(draft) for draft_id, draft in rows}

    def restart(self, waiting: Collection[Draft], offset: int) -> None:
        """Forget all, and go on with these drafts at the offset."""
        with self._changed_rows(offset) as rows:
            rows.execute("DELETE FROM drafts")
            rows.execute("DELETE FROM mails")
            rows.executemany("INSERT INTO drafts VALUES (?, ?)", map(_draft_row, waiting))

    def add(self, mails: Collection[Mail], waiting: Collection[Draft], ended: Collection[str], offset: int) -> None:
        """Store what follows from the records before the offset.

        `waiting`: drafts that wait, with their latest content. `ended`: the ids of those that wait no more.
        """
        with self._changed_rows(offset) as rows:
            rows.executemany("INSERT OR REPLACE INTO drafts VALUES (?, ?)", map(_draft_row, waiting))
            rows.executemany("INSERT OR IGNORE INTO mails VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", mails)
            rows.executemany("DELETE FROM drafts WHERE draft_id = ?", [(each,) for each in ended])
            rows.executemany("DELETE FROM mails WHERE draft_id = ? AND is_request = 1", [(each,) for each in ended])

    def due(self, now_ms: int, most: int) -> list[Mail]:
        """Return mails that are to be sent by now, the oldest first."""
        rows = self._store.rows.execute(
            "SELECT * FROM mails WHERE due_ms <= ? ORDER BY due_ms, mail_id LIMIT ?", (now_ms, most)
        )
        return [_mail(row) for row in rows]

    def next_due_ms(self) -> int | None:
        """Return when the next mail is to be sent."""
        (due_ms,) = self._store.rows.execute("SELECT min(due_ms) FROM mails").fetchone()
        return due_ms  # type: ignore[no-any-return]

    def remove(self, mail_id: str) -> None:
        """Remove a mail that was taken, or is given up."""
        with self._changed_rows() as rows:
            rows.execute("DELETE FROM mails WHERE mail_id = ?", (mail_id,))

    def postpone(self, mail_id: str, due_ms: int) -> None:
        """Note an attempt that has failed; the next one is at this time."""
        with self._changed_rows() as rows:
            sql = "UPDATE mails SET due_ms = ?, attempts = attempts + 1 WHERE mail_id = ?"
            rows.execute(sql, (due_ms, mail_id))

    def close(self) -> None:
        self._store.close()

    @contextmanager
    def _changed_rows(self, offset: int | None = None) -> Iterator[sqlite3.Connection]:
        """Yield the connection for changes that are committed together, with the offset if one is given.

        UnavailableError: they cannot be written.
        """
        try:
            with transaction(self._store):
                yield self._store.rows
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"the state of notices cannot be written: {error}") from error
        self._store.commit({} if offset is None else {_PARTITION: offset})


def _draft_row(draft: Draft) -> tuple[str, bytes]:
    return draft.draft_id, draft.SerializeToString()


def _mail(row: Sequence[object]) -> Mail:
    mail = Mail(*row)  # type: ignore[arg-type]
    return mail._replace(is_request=bool(mail.is_request))
