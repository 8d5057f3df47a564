"""Statistics as a table: the rows that analytics answers, with the names of their numbers."""

from collections.abc import Callable
from typing import NamedTuple

from protos.analytics.v1.analytics_pb2 import (
    BroadcastRow,
    ConnectionsRow,
    LoginsRow,
    StatisticsResponse,
    UsersRow,
)
from services.domain.statistics.rows import BROADCAST_COUNTS, LOGIN_DAYS

NOT_RECEIVED = range(5, 8)
"""The places of those numbers of a broadcast that count devices which did not receive it."""


class StatisticsRow(NamedTuple):
    """One row: a day ("" for the whole period), a value of the category (None without one), a push (0: none)."""

    date: str
    info: str | None
    msgid: int
    values: list[float]


class StatisticsTable(NamedTuple):
    """The names of the numbers, and the rows."""

    names: list[str]
    rows: list[StatisticsRow]

    @property
    def is_by_day(self) -> bool:
        """Whether each row is a day of its own, so that a line can be drawn through them."""
        days = [row.date for row in self.rows]
        return len(days) > 1 and all(days) and len(set(days)) == len(days)


def statistics_table(answer: StatisticsResponse, gettext: Callable[[str], str]) -> StatisticsTable:
    """Return the rows of the kind that was asked for."""
    if answer.connections:
        names = [gettext("Average"), gettext("Maximum"), gettext("Minimum")]
        return StatisticsTable(names, [_of_connections(row) for row in answer.connections])
    if answer.users:
        return StatisticsTable([gettext("Devices")], [_of_users(row) for row in answer.users])
    if answer.logins:
        names = [gettext("1 day"), *(gettext("%(days)s days") % {"days": days} for days in LOGIN_DAYS[1:])]
        return StatisticsTable(names, [_of_logins(row) for row in answer.logins])
    names = [
        *(gettext("Audience"), gettext("Sent"), gettext("Received"), gettext("Shown")),
        *(gettext("Clicked"), gettext("Failed"), gettext("Expired"), gettext("Cancelled")),
    ]
    return StatisticsTable(names, [_of_broadcast(row) for row in answer.broadcasts])


def _of_connections(row: ConnectionsRow) -> StatisticsRow:
    values: list[float] = [round(row.average, 1), row.maximum, row.minimum]
    return StatisticsRow(row.date, row.info if row.HasField("info") else None, 0, values)


def _of_users(row: UsersRow) -> StatisticsRow:
    return StatisticsRow(row.date, row.info if row.HasField("info") else None, 0, [row.count])


def _of_logins(row: LoginsRow) -> StatisticsRow:
    counts: list[float] = [row.counts.get(days, 0) for days in LOGIN_DAYS]
    return StatisticsRow(row.date, row.info if row.HasField("info") else None, 0, counts)


def _of_broadcast(row: BroadcastRow) -> StatisticsRow:
    counts: list[float] = [getattr(row, name) for name in BROADCAST_COUNTS]
    return StatisticsRow("", row.info if row.HasField("info") else None, row.msgid, counts)
