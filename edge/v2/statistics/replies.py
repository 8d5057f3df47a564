"""Answers of statistics: rows of the kind that follows from the requested type."""

from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
from msgspec import UNSET, UnsetType

from edge.core.answers import Reply
from edge.core.parsing.fields import Count, MessageId, Success, Text, described
from edge.core.parsing.shown import Shown
from edge.v2.times import time_text
from protos.analytics.v1.analytics_pb2 import (
    BroadcastRow,
    ConnectionsRow,
    LoginsRow,
    StatisticsResponse,
    UsersRow,
)
from services.domain.statistics.rows import BROADCAST_COUNTS, LOGIN_DAYS

_Date = Annotated[str, described("The day.")]
_Info = Annotated[str | UnsetType, described("The value of the category.")]


class ConnectionFigures(Reply, frozen=True, kw_only=True):
    """Long connections of a day, or of a value of the category."""

    date: Annotated[str | UnsetType, described("The day.")] = UNSET
    info: _Info = UNSET
    avg_count: Annotated[float, msgspec.Meta(ge=0), described("Average number of connections.")] = msgspec.field(
        name="avgCount"
    )
    max_count: Annotated[Count, described("Maximum.")] = msgspec.field(name="maxCount")
    min_count: Annotated[Count, described("Minimum.")] = msgspec.field(name="minCount")


class BroadcastFigures(Reply, frozen=True, kw_only=True):
    """Outcome of a broadcast or multicast."""

    msgid: Annotated[MessageId, described("The message.")]
    send_time: Annotated[str, described("The time of sending, in the service's time zone.")] = msgspec.field(
        name="sendTime"
    )
    info: _Info = UNSET
    target: Annotated[Count, described("Number of devices in its audience.")]
    sent: Annotated[Count, described("Number of devices: sent.")]
    received: Annotated[Count, described("Number of devices: received.")]
    shown: Annotated[Count, described("Number of devices: shown.")]
    clicked: Annotated[Count, described("Number of devices: clicked.")]
    failed: Annotated[Count, described("Number of devices: failed.")]
    expired: Annotated[Count, described("Number of devices: expired.")]
    cancelled: Annotated[Count, described("Number of devices: cancelled.")]


class UserFigures(Reply, frozen=True, kw_only=True):
    """Registered users of a day, or of a value of the category."""

    date: Annotated[str | UnsetType, described("The day.")] = UNSET
    info: _Info = UNSET
    count: Annotated[Count, described("Number of users.")]


class LoginFigures(Reply, frozen=True, kw_only=True):
    """Users who logged in within a number of days up to the date."""

    date: _Date
    info: _Info = UNSET
    days_1: Annotated[Count, described("Within 1 day.")] = msgspec.field(name="1")
    days_2: Annotated[Count, described("Within 2 days.")] = msgspec.field(name="2")
    days_3: Annotated[Count, described("Within 3 days.")] = msgspec.field(name="3")
    days_4: Annotated[Count, described("Within 4 days.")] = msgspec.field(name="4")
    days_5: Annotated[Count, described("Within 5 days.")] = msgspec.field(name="5")
    days_6: Annotated[Count, described("Within 6 days.")] = msgspec.field(name="6")
    days_7: Annotated[Count, described("Within 7 days.")] = msgspec.field(name="7")
    days_30: Annotated[Count, described("Within 30 days.")] = msgspec.field(name="30")


class StatisticsReply(Reply, frozen=True):
    """The kind of rows follows from `type`."""

    result: Success
    desc: Text
    data: Annotated[
        list[Annotated[Any, Shown(ConnectionFigures, BroadcastFigures, UserFigures, LoginFigures)]],
        described("The rows."),
    ]


def statistics_reply(found: StatisticsResponse, zone: ZoneInfo) -> StatisticsReply:
    """Answer with the rows of the one list that is filled; times are in `zone`."""
    rows = [
        *map(_connections, found.connections),
        *(_broadcast(row, zone) for row in found.broadcasts),
        *map(_users, found.users),
        *map(_logins, found.logins),
    ]
    return StatisticsReply(result=0, desc="ok", data=rows)


def _connections(row: ConnectionsRow) -> ConnectionFigures:
    return ConnectionFigures(
        date=_date(row), info=_info(row), avg_count=round(row.average, 2), max_count=row.maximum, min_count=row.minimum
    )


def _broadcast(row: BroadcastRow, zone: ZoneInfo) -> BroadcastFigures:
    counts = {name: getattr(row, name) for name in BROADCAST_COUNTS}
    return BroadcastFigures(msgid=row.msgid, send_time=time_text(row.sent_ms, zone), info=_info(row), **counts)


def _users(row: UsersRow) -> UserFigures:
    return UserFigures(date=_date(row), info=_info(row), count=row.count)


def _logins(row: LoginsRow) -> LoginFigures:
    counts = {f"days_{days}": row.counts[days] for days in LOGIN_DAYS}
    return LoginFigures(date=row.date, info=_info(row), **counts)


def _date(row: ConnectionsRow | UsersRow) -> str | UnsetType:
    return row.date if row.HasField("date") else UNSET


def _info(row: ConnectionsRow | BroadcastRow | UsersRow | LoginsRow) -> str | UnsetType:
    return row.info if row.HasField("info") else UNSET
