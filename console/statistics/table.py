"""Statistics as a table with named numbers, and for each number the path of the page that shows its details."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from console.pushes.words import ServiceWords
from console.statistics.actions import CATEGORIES, StatisticsQuestion
from protos.analytics.v1.analytics_pb2 import (
    BroadcastRow,
    ChannelCounts,
    ConnectionsRow,
    LoginsRow,
    StatisticsResponse,
    UsersRow,
)
from services.domain.statistics_rows import APPLE, BROADCAST_COUNTS, CHANNEL_COUNTS, LOGIN_DAYS, OWN

NOT_RECEIVED = range(5, 8)
"""The places of those numbers of a broadcast that count devices which did not receive it."""


class TableRow(NamedTuple):
    """One row: a day ("" for the whole period), a value of the category (None without one), a push (0: none).

    `channels`: the counts of a push by channel; none if all rows left by the platform's own one.
    """

    date: str
    info: str | None
    msgid: int
    values: list[float]
    channels: Sequence[ChannelCounts] = ()


class StatisticsTable(NamedTuple):
    """The names of the numbers, and the rows."""

    names: list[str]
    rows: list[TableRow]

    @property
    def is_by_day(self) -> bool:
        """Whether each row is a day of its own, so that a line can be drawn through them."""
        days = [row.date for row in self.rows]
        return len(days) > 1 and all(days) and len(set(days)) == len(days)


def largest_first(table: StatisticsTable) -> StatisticsTable:
    """Return a table that is divided by a category with the largest values of each day first, and what is not reported
    last.
    """
    if any(row.info is None for row in table.rows):
        return table
    return table._replace(rows=sorted(table.rows, key=lambda row: (row.date, not row.info, -row.values[0], row.info)))


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
    return StatisticsTable(names, _of_broadcasts(answer.broadcasts))


def _of_connections(row: ConnectionsRow) -> TableRow:
    values: list[float] = [round(row.average, 1), row.maximum, row.minimum]
    return TableRow(row.date, row.info if row.HasField("info") else None, 0, values)


def _of_users(row: UsersRow) -> TableRow:
    return TableRow(row.date, row.info if row.HasField("info") else None, 0, [row.count])


def _of_logins(row: LoginsRow) -> TableRow:
    counts: list[float] = [row.counts.get(days, 0) for days in LOGIN_DAYS]
    return TableRow(row.date, row.info if row.HasField("info") else None, 0, counts)


def _of_broadcasts(rows: Sequence[BroadcastRow]) -> list[TableRow]:
    """Return the rows.

    If any row has channels, the rows of pushes that left by the platform's own channel get that channel.
    """
    found = {each.channel for row in rows for each in row.channels}
    of_platform = APPLE if APPLE in found else OWN
    table = []
    for row in rows:
        channels = list(row.channels)
        if found and row.sent and not channels:
            whole: Any = {name: getattr(row, name) for name in CHANNEL_COUNTS}
            channels = [ChannelCounts(channel=of_platform, **whole)]
        counts: list[float] = [getattr(row, name) for name in BROADCAST_COUNTS]
        table.append(TableRow("", row.info if row.HasField("info") else None, row.msgid, counts, channels))
    return table


def with_channel_columns(table: StatisticsTable, gettext: Callable[[str], str]) -> StatisticsTable:
    """Return the table with a column for each channel by which any of its pushes left and each number of a channel."""
    found = {(each.channel, each.simulated) for row in table.rows for each in row.channels}
    ways = sorted(found, key=lambda way: (way[0] != OWN, way))
    services = ServiceWords(gettext)
    names = [
        f"{services(*way)}: {table.names[BROADCAST_COUNTS.index(name)]}" for way in ways for name in CHANNEL_COUNTS
    ]

    def with_columns(row: TableRow) -> TableRow:
        of_ways = {(each.channel, each.simulated): each for each in row.channels}
        added = [getattr(of_ways.get(way, ChannelCounts()), name) for way in ways for name in CHANNEL_COUNTS]
        return row._replace(values=[*row.values, *added])

    return StatisticsTable([*table.names, *names], [with_columns(row) for row in table.rows])


# The question behind each number in a table of statistics, as the path of the page that answers it.

_DIVIDED_BY = "channel"
"""A category that all types have."""


def path_of_push(appkey: str, msgid: int, category: str = CATEGORIES[0], info: str = "") -> str:
    """Return the path of the numbers of a broadcast or multicast, divided by a category: all values, or one."""
    asked = {"appkey": appkey, "kind": "broadcasts", "push": msgid, "category": category, "info": info}
    return f"/statistics?{urlencode({name: value for name, value in asked.items() if value})}"


def links_of(question: StatisticsQuestion, row: TableRow) -> Sequence[str]:
    """Return the path for each number of the row, "" for none.

    A day leads to the day alone, a day alone to its division by a category, and a value to the value alone. A push
    leads to its division by a category, and the devices that did not receive it to their reasons.
    """
    if not row.msgid:
        return [_detail(question, row)] * len(row.values)
    reasons = f"/apps/{question.appkey}/pushes/{row.msgid}/failures"
    if question.category:
        reasons, others = f"{reasons}?{urlencode({'category': question.category})}", _of_value(question, row)
    else:
        others = path_of_push(question.appkey, row.msgid)
    paths = (reasons if number in NOT_RECEIVED else others for number in range(len(row.values)))
    return [path if value else "" for path, value in zip(paths, row.values, strict=True)]


def _detail(question: StatisticsQuestion, row: TableRow) -> str:
    if row.date:
        is_alone = question.first == question.last == row.date
        divided = {"category": _DIVIDED_BY} if is_alone else {}
        return f"/statistics?{question.query(first=row.date, last=row.date, **divided)}"
    return _of_value(question, row)


def _of_value(question: StatisticsQuestion, row: TableRow) -> str:
    is_known = bool(row.info) and row.info != question.info
    return f"/statistics?{question.query(info=row.info or '')}" if is_known else ""
