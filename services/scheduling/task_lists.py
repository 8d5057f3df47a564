"""Pages of the lists of timed tasks: an app's tasks by creation time, or with those that wait first."""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

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
    """Reads the lists over a connection to the tables of store.py."""

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
        """Return one page of the apps' tasks, those that wait before all others."""
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
