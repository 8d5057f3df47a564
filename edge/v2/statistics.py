"""Statistics in the v2 interface: the endpoint, its requests and answers."""

import datetime
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal
from zoneinfo import ZoneInfo

import msgspec
from falcon.asgi import Request, Response
from msgspec import UNSET, UnsetType

from edge.core.admission import Admission
from edge.core.analytics_calls import call_analytics
from edge.core.answers import Reply, answer
from edge.core.parsing.fields import (
    Appkey,
    Count,
    Date,
    MessageId,
    Rule,
    Shown,
    Sign,
    Success,
    Text,
    described,
    required_where,
    sign_of,
)
from edge.core.parsing.typed import ABSENT, decode
from edge.v2.apps import one_app
from edge.v2.tasks import time_text
from protos.analytics.v1.analytics_pb2 import (
    USER_KIND_CUMULATIVE,
    USER_KIND_NEW,
    BroadcastRow,
    ConnectionsRow,
    Dates,
    LoginsRow,
    StatisticsRequest,
    StatisticsResponse,
    UsersRow,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.domain.statistics_rows import BROADCAST_COUNTS, LOGIN_DAYS
from services.errors import InputError
from services.net.rpc.channel import Channel

# Requests for statistics, with their limits and descriptions. InputError names the field.

MAX_DAYS = 400
_BROADCASTS = 1
_CUSTOM_SCOPE = 3
_EVERY_MESSAGE = -1
_RULED_OUT: Mapping[int, tuple[int, ...]] = MappingProxyType({0: (), 1: (), 2: (1,), 3: (6, 7, 8)})
"""The categories that each type rejects."""

_YEARS = range(1970, 2149)

Category = Annotated[int, msgspec.Meta(ge=0, le=8)] | None
AskedMessageId = Annotated[int, msgspec.Meta(ge=-1, le=2**53)] | None
UserType = Literal[0, 1] | None
Info = Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None


class StatisticsSigned(msgspec.Struct, frozen=True):
    """The fields that authentication reads."""

    appkey: Annotated[Appkey, described("The app.")]
    sign: Annotated[Sign, sign_of("the app's secret")]


class Duration(msgspec.Struct, frozen=True):
    """`timeScope`: 0 today, 1 yesterday, 2 the last seven days, 3 the dates `from` to `to`."""

    shown_rules: ClassVar[tuple[Rule, ...]] = (required_where("timeScope", [_CUSTOM_SCOPE], "from", "to"),)

    time_scope: Annotated[
        Literal[0, 1, 2, 3], described("0 today, 1 yesterday, 2 the last seven days, 3 `from` to `to`.")
    ] = msgspec.field(name="timeScope")
    first: Annotated[msgspec.Raw, Shown(Date | None), described("The first day, with timeScope 3.")] = msgspec.field(
        name="from", default=ABSENT
    )
    last: Annotated[msgspec.Raw, Shown(Date | None), described(f"The last day; {MAX_DAYS} days at most.")] = (
        msgspec.field(name="to", default=ABSENT)
    )


class StatisticsParam(msgspec.Struct, frozen=True):
    """Fields that have no effect with the type and the category are not read."""

    category: Annotated[
        msgspec.Raw,
        Shown(Category),
        described(
            "0 (default) none, 1 region (not with type 2), 2 carrier, 3 channel, 4 SDK version, 5 brand, 6 resolution,"
            " 7 OS version, 8 app version (6 to 8 not with type 3)."
        ),
    ] = ABSENT
    dur: Annotated[msgspec.Raw, Shown(Duration | None), described("The days; not read with type 1.")] = ABSENT
    info: Annotated[
        msgspec.Raw,
        Shown(Info),
        described("A value of the category, or `all` for a row per value; required with a category."),
    ] = msgspec.field(name="Info", default=ABSENT)
    info_small: Annotated[msgspec.Raw, Shown(Info), described("The same as Info.")] = msgspec.field(
        name="info", default=ABSENT
    )
    msgid: Annotated[
        msgspec.Raw, Shown(AskedMessageId), described("With type 1: the message; -1 or absent for a list of messages.")
    ] = ABSENT
    usertype: Annotated[
        msgspec.Raw, Shown(UserType), described("With type 2: 0 (default) new users, 1 all users until then.")
    ] = ABSENT


class StatisticsBody(msgspec.Struct, frozen=True):
    """POST /v2/statistics. `type`: 0 long connections, 1 broadcasts, 2 registered users, 3 logged-in users."""

    shown_rules: ClassVar[tuple[Rule, ...]] = (required_where("type", [0, 2, 3], "param.dur"),)

    kind: Annotated[
        Literal[0, 1, 2, 3], described("0 long connections, 1 broadcasts, 2 registered users, 3 logged-in users.")
    ] = msgspec.field(name="type")
    param: Annotated[msgspec.Raw, Shown(StatisticsParam), described("The category and the period.")]


def statistics_request(raw: bytes, appkey: str) -> StatisticsRequest:
    """Parse POST /v2/statistics into the query for analytics."""
    body: StatisticsBody = decode(StatisticsBody, raw)
    param: StatisticsParam = decode(StatisticsParam, body.param, "param")
    query = StatisticsRequest(appkey=appkey, kind=body.kind + 1)  # type: ignore[arg-type]
    if body.kind == _BROADCASTS:
        msgid = decode(AskedMessageId, param.msgid, "param.msgid")
        if msgid is None or msgid == _EVERY_MESSAGE:
            return query
        query.msgid = msgid
    else:
        _read_duration(query, decode(Duration | None, param.dur, "param.dur"))
    _read_category(query, param, body.kind)
    if body.kind == 2:
        is_cumulative = decode(UserType, param.usertype, "param.usertype") == 1
        query.user_kind = USER_KIND_CUMULATIVE if is_cumulative else USER_KIND_NEW
    return query


def _read_category(query: StatisticsRequest, param: StatisticsParam, kind: int) -> None:
    category: Any = decode(Category, param.category, "param.category") or 0
    if category in _RULED_OUT[kind]:
        raise InputError(f"param.category {category} is not possible with type {kind}")
    if category:
        info = decode(Info, param.info if param.info != ABSENT else param.info_small, "param.Info")
        if info is None:
            raise InputError(f"param.Info is missing: category {category} needs it")
        query.category = category
        query.info = info


def _read_duration(query: StatisticsRequest, duration: Duration | None) -> None:
    if duration is None:
        raise InputError("param.dur is missing")
    if duration.time_scope != _CUSTOM_SCOPE:
        query.scope = duration.time_scope + 1  # type: ignore[assignment]
        return
    first = _date(duration.first, "param.dur.from")
    last = _date(duration.last, "param.dur.to")
    if last < first:
        raise InputError("param.dur.to must not be before param.dur.from")
    if (last - first).days >= MAX_DAYS:
        raise InputError(f"param.dur must cover at most {MAX_DAYS} days")
    query.dates.CopyFrom(Dates(**{"from": first.isoformat(), "to": last.isoformat()}))


def _date(raw: msgspec.Raw, at: str) -> datetime.date:
    text = decode(str | None, raw, at)
    if text is None:
        raise InputError(f"{at} is missing: timeScope {_CUSTOM_SCOPE} needs it")
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        date = datetime.date.min
    if date.isoformat() != text or date.year not in _YEARS:
        raise InputError(f"{at} must be a date like 2030-01-31")
    return date


# Answers of statistics: rows of the kind that follows from the requested type.

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


class ChannelFigures(Reply, frozen=True):
    """Devices that one channel was sent a broadcast or multicast for."""

    channel: Annotated[str, described("own for Carillon's connections, apns for Apple, else its name, as webpush.")]
    simulated: Annotated[
        bool, described("A simulator answered in the place of its service: nothing left the installation.")
    ]
    sent: Annotated[Count, described("Number of devices: sent, or taken over by the service.")]
    received: Annotated[Count, described("Of these: received.")]
    shown: Annotated[Count, described("Of these: shown.")]
    clicked: Annotated[Count, described("Of these: clicked.")]


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
    channels: Annotated[
        list[ChannelFigures] | UnsetType,
        described("By channel; absent where only own connections, or only Apple's own service, were sent it."),
    ] = UNSET


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
        date=_day(row), info=_info(row), avg_count=round(row.average, 2), max_count=row.maximum, min_count=row.minimum
    )


def _broadcast(row: BroadcastRow, zone: ZoneInfo) -> BroadcastFigures:
    counts = {name: getattr(row, name) for name in BROADCAST_COUNTS}
    channels = [
        ChannelFigures(*(getattr(each, name) for name in ChannelFigures.__struct_fields__)) for each in row.channels
    ]
    return BroadcastFigures(
        msgid=row.msgid,
        send_time=time_text(row.sent_ms, zone),
        info=_info(row),
        **counts,
        channels=channels or UNSET,
    )


def _users(row: UsersRow) -> UserFigures:
    return UserFigures(date=_day(row), info=_info(row), count=row.count)


def _logins(row: LoginsRow) -> LoginFigures:
    counts = {f"days_{days}": row.counts[days] for days in LOGIN_DAYS}
    return LoginFigures(date=row.date, info=_info(row), **counts)


def _day(row: ConnectionsRow | UsersRow) -> str | UnsetType:
    return row.date if row.HasField("date") else UNSET


def _info(row: ConnectionsRow | BroadcastRow | UsersRow | LoginsRow) -> str | UnsetType:
    return row.info if row.HasField("info") else UNSET


_ANALYTICS_S = 20.0


class StatisticsEndpoint:
    """POST /v2/statistics"""

    def __init__(self, admission: Admission, analytics: Channel, zone: ZoneInfo) -> None:
        self._admission = admission
        self._analytics = AnalyticsServiceStub(analytics)
        self._zone = zone

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._admission.admit(request, one_app)
        (appkey,) = signed.apps.appkeys
        query = await signed.read(lambda raw: statistics_request(raw, appkey))
        await signed.enter_query()
        found = await call_analytics(request, self._analytics.Statistics(query, timeout=_ANALYTICS_S))
        answer(response, statistics_reply(found, self._zone))
