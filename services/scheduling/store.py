"""The tables of timed tasks and idempotency claims in SQLite, and pages of the lists of tasks."""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from protos.scheduling.v1.scheduling_pb2 import Claim, TaskFact, TaskScheduled
from services.scheduling.state import CLAIM_MS, ENDED_KEPT_MS, UNSENT, Status, StoredClaim, StoredTask, expires_ms

DDL = """
CREATE TABLE tasks (
  task_key TEXT NOT NULL PRIMARY KEY,
  partition INTEGER NOT NULL,
  due_ms INTEGER NOT NULL,
  status INTEGER NOT NULL,
  scheduled BLOB NOT NULL,
  cancelled_by BLOB NOT NULL,
  at_once INTEGER NOT NULL,
  was_paused INTEGER NOT NULL,
  appkey TEXT NOT NULL,
  expires_ms INTEGER NOT NULL,
  failure TEXT NOT NULL,
  falls_due_ms INTEGER AS (CASE at_once WHEN 1 THEN 0 ELSE due_ms END)); -- at once, though another clock set due_ms
CREATE INDEX tasks_next ON tasks (falls_due_ms, due_ms) WHERE status = 1;
CREATE INDEX tasks_waiting ON tasks (appkey, falls_due_ms, due_ms, task_key) WHERE status = 1;
CREATE INDEX tasks_at_once ON tasks (task_key) WHERE at_once = 1;
CREATE INDEX tasks_expiring ON tasks (expires_ms) WHERE status = 5;
CREATE INDEX tasks_paused ON tasks (appkey, due_ms, task_key) WHERE status = 5;
CREATE INDEX tasks_fell_due ON tasks (appkey, due_ms, task_key) WHERE status = 2;
CREATE INDEX tasks_ended ON tasks (partition, due_ms, task_key) WHERE status IN (3, 4, 6, 7);
CREATE TABLE task_apps (
  appkey TEXT NOT NULL, created_ms INTEGER NOT NULL, task_key TEXT NOT NULL,
  PRIMARY KEY (appkey, created_ms, task_key)) WITHOUT ROWID;
CREATE TABLE waiting_apps (
  appkey TEXT NOT NULL, due_ms INTEGER NOT NULL, task_key TEXT NOT NULL, bytes INTEGER NOT NULL,
  PRIMARY KEY (appkey, due_ms, task_key)) WITHOUT ROWID;
CREATE INDEX waiting_apps_by_task ON waiting_apps (task_key);
CREATE TABLE claims (
  key BLOB NOT NULL PRIMARY KEY,
  partition INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  task_key TEXT NOT NULL,
  claim BLOB NOT NULL);
CREATE INDEX claims_by_age ON claims (partition, created_ms);
"""
_TASK = "task_key, partition, status, scheduled, cancelled_by, was_paused"
_UNSENT_AT_ONCE = 1
_FAILED_AT_ONCE = 2
MAX_DELETED = 100
"""Upper bound of the ended tasks that one new task deletes, so that it waits for few."""

_DUE = """
SELECT appkey, task_key, partition FROM (
  SELECT * FROM (SELECT appkey, due_ms, task_key, partition FROM tasks
    WHERE status = 1 AND falls_due_ms = 0 {0} ORDER BY due_ms LIMIT :limit)
  UNION ALL SELECT * FROM (SELECT appkey, due_ms, task_key, partition FROM tasks
    WHERE status = 1 AND falls_due_ms > 0 AND falls_due_ms <= :now_ms {0} ORDER BY falls_due_ms LIMIT :limit))
ORDER BY due_ms, task_key LIMIT :limit
"""
"""Selects the tasks of `TaskTable.due`. Each of the two kinds is in the order of an index; no index has both."""

_APPS = """
WITH RECURSIVE apps (appkey) AS (
  SELECT min(appkey) FROM tasks WHERE status = {0:d} UNION ALL
  SELECT (SELECT min(appkey) FROM tasks WHERE status = {0:d} AND tasks.appkey > apps.appkey) FROM apps
  WHERE apps.appkey IS NOT NULL)
SELECT appkey FROM apps WHERE appkey IS NOT NULL AND EXISTS (
  SELECT 1 FROM tasks WHERE status = {0:d} AND tasks.appkey = apps.appkey AND falls_due_ms <= ?)
"""
"""Selects the apps of `TaskTable.apps_with`: a recursive look-up per app, where DISTINCT would read all tasks in the
status.
"""


class FiringOrder(NamedTuple):
    """The place of a task among those of its app: earliest due time first, then by task key."""

    due_ms: int
    task_key: str


BEFORE_ALL = FiringOrder(-(2**63), "")
AT_ANY_TIME = 2**63 - 1


class DueTask(NamedTuple):
    """A task that falls due or expires now; `appkey`: the app in whose turn it is sent."""

    appkey: str
    task_key: str
    partition: int


class TaskTable:
    """Tasks and claims of a SqliteStore, over its writing connection or over one that reads committed rows."""

    def __init__(self, rows: sqlite3.Connection) -> None:
        self._rows = rows

    def add(self, partition: int, scheduled: TaskFact) -> None:
        key, task = scheduled.task_key, scheduled.scheduled
        self._delete_ended(partition, task.created_ms - ENDED_KEPT_MS)
        value = scheduled.SerializeToString(deterministic=True)
        added = self._rows.execute(
            "INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, '')",
            (
                *(key, partition, task.due_ms, Status.WAITING, value, b"", task.at_once),
                *(next((push.appkey for push in task.pushes), ""), expires_ms(task)),
            ),
        )
        if not task.at_once:
            if added.rowcount:
                self._add_waiting(key, task)
            self._rows.executemany(
                "INSERT OR IGNORE INTO task_apps VALUES (?, ?, ?)",
                [(push.appkey, task.created_ms, key) for push in task.pushes],
            )
        if task.HasField("claim"):
            self._add_claim(partition, key, task)

    def _delete_ended(self, partition: int, until_ms: int) -> None:
        """Delete the first MAX_DELETED of the partition's tasks that have ended and were due until this time.

        Facts of the same partition alone decide when, so a replay deletes the same.
        """
        ended = self._rows.execute(
            "SELECT task_key, scheduled FROM tasks WHERE partition = ? AND due_ms <= ? AND status IN (3, 4, 6, 7)"
            " ORDER BY due_ms, task_key LIMIT ?",
            (partition, until_ms, MAX_DELETED),
        ).fetchall()
        for task_key, value in ended:
            task = TaskFact.FromString(value).scheduled
            self._rows.execute("DELETE FROM tasks WHERE task_key = ?", (task_key,))
            self._rows.executemany(
                "DELETE FROM task_apps WHERE appkey = ? AND created_ms = ? AND task_key = ?",
                [(push.appkey, task.created_ms, task_key) for push in task.pushes],
            )

    def change(self, task_key: str, before: Collection[Status], after: Status, cancelled_by: bytes = b"") -> None:
        changed = self._rows.execute(
            "UPDATE tasks SET status = ?, cancelled_by = ?, was_paused = was_paused OR ?"  # noqa: S608
            f" WHERE task_key = ? AND status IN ({', '.join('?' * len(before))})",
            (after, cancelled_by, after == Status.PAUSED, task_key, *before),
        )
        if changed.rowcount and after not in UNSENT:
            self._rows.execute("DELETE FROM waiting_apps WHERE task_key = ?", (task_key,))
        if after == Status.SENT:
            self._rows.execute(
                "DELETE FROM tasks WHERE task_key = ? AND status = ? AND at_once = 1", (task_key, Status.SENT)
            )

    def fail(self, task_key: str, reason: str) -> None:
        """Note why a task that fell due was not sent. A task that was to be sent at once is kept too, for its claim."""
        self._rows.execute(
            "UPDATE tasks SET status = ?, at_once = at_once * ?, failure = ? WHERE task_key = ? AND status = ?",
            (Status.FAILED, _FAILED_AT_ONCE, reason, task_key, Status.FELL_DUE),
        )

    def forget(self, appkey: str, until_ms: int, left: Callable[[int, TaskFact], TaskFact | None]) -> None:
        """Replace the tasks of an app made up to a time by what `left` returns, given partition and task.

        None: the task stays as it is.
        """
        rows = self._rows.execute(
            "SELECT task_key, partition, scheduled FROM tasks WHERE appkey = ? OR task_key IN"
            " (SELECT task_key FROM task_apps WHERE appkey = ?)",
            (appkey, appkey),
        ).fetchall()
        for task_key, partition, value in rows:
            scheduled = TaskFact.FromString(value)
            if scheduled.scheduled.created_ms > until_ms or (changed := left(partition, scheduled)) is None:
                continue
            self._rows.execute(
                "UPDATE tasks SET scheduled = ? WHERE task_key = ?",
                (changed.SerializeToString(deterministic=True), task_key),
            )
            if self._rows.execute("DELETE FROM waiting_apps WHERE task_key = ?", (task_key,)).rowcount:
                self._add_waiting(task_key, changed.scheduled)

    def _add_waiting(self, task_key: str, task: TaskScheduled) -> None:
        self._rows.executemany(
            "INSERT INTO waiting_apps VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes",
            [(push.appkey, task.due_ms, task_key, push.ByteSize()) for push in task.pushes],
        )

    def _add_claim(self, partition: int, task_key: str, task: TaskScheduled) -> None:
        """Store the claim; first delete the partition's expired claims, and the failed tasks kept for them alone."""
        expired = (partition, task.created_ms - CLAIM_MS)
        self._rows.execute(
            "DELETE FROM tasks WHERE at_once = ? AND task_key IN"
            " (SELECT task_key FROM claims WHERE partition = ? AND created_ms <= ?)",
            (_FAILED_AT_ONCE, *expired),
        )
        self._rows.execute("DELETE FROM claims WHERE partition = ? AND created_ms <= ?", expired)
        claim = task.claim.SerializeToString(deterministic=True)
        self._rows.execute(
            "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)",
            (task.claim.key, partition, task.created_ms, task_key, claim),
        )

    def find_claim(self, key: bytes) -> StoredClaim | None:
        """Return the last claim of the idempotency key."""
        row = self._rows.execute(
            "SELECT claims.task_key, claim, created_ms, at_once, failure"
            " FROM claims LEFT JOIN tasks ON tasks.task_key = claims.task_key WHERE key = ?",
            (key,),
        ).fetchone()
        if row is None:
            return None
        task_key, claim, created_ms, at_once, failure = row
        is_unsent, has_failed = at_once == _UNSENT_AT_ONCE, at_once == _FAILED_AT_ONCE
        return StoredClaim(task_key, Claim.FromString(claim), created_ms, is_unsent, failure if has_failed else "")

    def find(self, task_key: str) -> StoredTask | None:
        row = self._rows.execute(f"SELECT {_TASK} FROM tasks WHERE task_key = ?", (task_key,)).fetchone()  # noqa: S608
        return _task(row) if row else None

    def at_once(self) -> set[str]:
        """Return the keys of the unsent tasks that go out at once."""
        return {key for (key,) in self._rows.execute("SELECT task_key FROM tasks WHERE at_once = 1")}

    def next_due_ms(self) -> int | None:
        """Return when the next waiting task falls due, in ms since 1970; 0: a task is to be sent at once."""
        row = self._rows.execute(
            "SELECT falls_due_ms FROM tasks WHERE status = 1 ORDER BY falls_due_ms LIMIT 1"
        ).fetchone()
        return row[0] if row else None

    def due(self, now_ms: int, limit: int) -> list[DueTask]:
        """Return the waiting tasks that go out at once or whose due time has come, earliest due time first."""
        rows = self._rows.execute(_DUE.format(""), {"now_ms": now_ms, "limit": limit})
        return list(map(DueTask._make, rows))

    def due_of_app(self, appkey: str, now_ms: int, limit: int) -> list[DueTask]:
        """Return the waiting tasks of `due` that are the app's."""
        parameters = {"appkey": appkey, "now_ms": now_ms, "limit": limit}
        rows = self._rows.execute(_DUE.format("AND appkey = :appkey"), parameters)
        return list(map(DueTask._make, rows))

    def apps_with(self, status: Status, due_ms: int = AT_ANY_TIME) -> list[str]:
        """Return the apps, in order, that have a task in WAITING, PAUSED or FELL_DUE with a due time until `due_ms`.

        The cost is that of a few look-ups for each app with a task in the status, however many tasks it has.
        """
        return [appkey for (appkey,) in self._rows.execute(_APPS.format(status), (due_ms,))]

    def expired(self, now_ms: int, limit: int) -> list[DueTask]:
        """Return paused tasks whose time to live is over."""
        rows = self._rows.execute(
            "SELECT appkey, task_key, partition FROM tasks WHERE status = 5 AND expires_ms <= ?"
            " ORDER BY expires_ms LIMIT ?",
            (now_ms, limit),
        )
        return list(map(DueTask._make, rows))

    def next_expiry_ms(self) -> int | None:
        """Return the time in ms since 1970 at which the time to live of the next paused task ends."""
        row = self._rows.execute("SELECT expires_ms FROM tasks WHERE status = 5 ORDER BY expires_ms LIMIT 1").fetchone()
        return row[0] if row else None

    def paused(self, appkey: str, after: FiringOrder, limit: int) -> list[StoredTask]:
        """Return the app's paused tasks after `after`, earliest first."""
        rows = self._rows.execute(
            f"SELECT {_TASK} FROM tasks WHERE status = 5 AND appkey = ? AND (due_ms, task_key) > (?, ?)"  # noqa: S608
            " ORDER BY due_ms, task_key LIMIT ?",
            (appkey, *after, limit),
        )
        return [_task(row) for row in rows]

    def fell_due(self, appkey: str, after: FiringOrder, limit: int) -> list[FiringOrder]:
        """Return the places of the app's tasks after `after` that fell due and are not sent yet, earliest first."""
        rows = self._rows.execute(
            "SELECT due_ms, task_key FROM tasks WHERE status = 2 AND appkey = ? AND (due_ms, task_key) > (?, ?)"
            " ORDER BY due_ms, task_key LIMIT ?",
            (appkey, *after, limit),
        )
        return list(map(FiringOrder._make, rows))

    def apps_of(self, task_keys: Iterable[str]) -> list[str]:
        """Return the apps whose turn the tasks wait for, in the order of the tasks."""
        query = "SELECT appkey FROM tasks WHERE task_key = ?"
        found = (row[0] for key in task_keys if (row := self._rows.execute(query, (key,)).fetchone()))
        return list(dict.fromkeys(found))

    def find_all(self, task_keys: Iterable[str]) -> list[StoredTask]:
        """Return the tasks that exist, in the given order."""
        return [task for key in task_keys if (task := self.find(key))]

    def waiting_bytes(self, appkeys: Sequence[str]) -> list[int]:
        """Return the bytes of each app's pushes in waiting tasks with a set time."""
        query = "SELECT coalesce(sum(bytes), 0) FROM waiting_apps WHERE appkey = ?"
        return [int(self._rows.execute(query, (appkey,)).fetchone()[0]) for appkey in appkeys]

    def close(self) -> None:
        self._rows.close()


def _task(row: tuple[str, int, int, bytes, bytes, int]) -> StoredTask:
    task_key, partition, status, scheduled, cancelled_by, was_paused = row
    return StoredTask(
        task_key, partition, Status(status), TaskFact.FromString(scheduled), cancelled_by, bool(was_paused)
    )


# Pages of the lists of timed tasks: an app's tasks by creation time, or with the waiting ones first.

_PAGE = "SELECT created_ms, task_key FROM task_apps WHERE appkey IN ({}) GROUP BY created_ms, task_key"
_WAITING = """
SELECT due_ms, task_key FROM waiting_apps WHERE appkey IN ({}) GROUP BY due_ms, task_key
ORDER BY due_ms, task_key LIMIT ? OFFSET ?
"""
_ENDED = """
SELECT created_ms, task_key FROM task_apps
WHERE appkey IN ({0}) AND task_key NOT IN (SELECT task_key FROM waiting_apps WHERE appkey IN ({0}))
GROUP BY created_ms, task_key ORDER BY created_ms DESC, task_key LIMIT ? OFFSET ?
"""


class WaitingFirstPage(NamedTuple):
    """One page of a list that begins with the waiting tasks: pairs of a time and a task key.

    `waiting` is sorted by due time, and `ended`, which follows it, by creation time, the newest first.
    """

    waiting: list[tuple[int, str]]
    ended: list[tuple[int, str]]


class TaskLists:
    """Reads pages of the lists of tasks, over a connection of its own."""

    def __init__(self, rows: sqlite3.Connection) -> None:
        self._rows = rows

    def keys_of_apps(
        self, appkeys: Sequence[str], *, descending: bool, offset: int, limit: int
    ) -> list[tuple[int, str]]:
        """Return one page of the apps' tasks as (created_ms, task key), ordered by both."""
        order = "DESC" if descending else "ASC"
        page = f"{_pages(appkeys)} ORDER BY created_ms {order}, task_key {order} LIMIT ? OFFSET ?"
        return self._rows.execute(page, (*appkeys, limit, offset)).fetchall()

    def waiting_first(self, appkeys: Sequence[str], *, offset: int, limit: int) -> WaitingFirstPage:
        """Return one page of the apps' tasks, waiting ones before all others."""
        marks = ", ".join("?" * len(appkeys))
        waiting = self._rows.execute(_WAITING.format(marks), (*appkeys, limit, offset)).fetchall()
        if len(waiting) == limit:
            return WaitingFirstPage(waiting, [])
        skip = 0 if waiting else offset - self._count_waiting(appkeys)
        ended = self._rows.execute(_ENDED.format(marks), (*appkeys, *appkeys, limit - len(waiting), skip))
        return WaitingFirstPage(waiting, ended.fetchall())

    def count_of_apps(self, appkeys: Sequence[str]) -> int:
        row = self._rows.execute(f"SELECT count(*) FROM ({_pages(appkeys)})", tuple(appkeys)).fetchone()  # noqa: S608
        return int(row[0])

    def _count_waiting(self, appkeys: Sequence[str]) -> int:
        marks = ", ".join("?" * len(appkeys))
        query = f"SELECT count(DISTINCT task_key) FROM waiting_apps WHERE appkey IN ({marks})"  # noqa: S608
        return int(self._rows.execute(query, tuple(appkeys)).fetchone()[0])


def _pages(appkeys: Sequence[str]) -> str:
    return _PAGE.format(", ".join("?" * len(appkeys)))
