"""Requests for statistics, with their limits and descriptions. InputError names the field."""

import datetime
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from edge.core.parsing.fields import Appkey, Date, Sign, described, sign_of
from edge.core.parsing.shown import Rule, Shown, required_where
from edge.core.parsing.typed import ABSENT, decode
from protos.analytics.v1.analytics_pb2 import (
    USER_KIND_CUMULATIVE,
    USER_KIND_NEW,
    Dates,
    StatisticsRequest,
)
from services.runtime.errors import InputError

MAX_DAYS = 400
_BROADCASTS = 1
_CUSTOM_SCOPE = 3
_EVERY_MESSAGE = -1
_RULED_OUT: Mapping[int, tuple[int, ...]] = MappingProxyType({0: (), 1: (), 2: (1,), 3: (6, 7, 8)})
"""The categories that each type rejects."""

_YEARS = range(1970, 2149)

Category = Annotated[int, msgspec.Meta(ge=0, le=8)] | None
MessageId = Annotated[int, msgspec.Meta(ge=-1, le=2**53)] | None
UserType = Literal[0, 1] | None
Info = Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None


class Signed(msgspec.Struct, frozen=True):
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
        msgspec.Raw, Shown(MessageId), described("With type 1: the message; -1 or absent for a list of messages.")
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
        msgid = decode(MessageId, param.msgid, "param.msgid")
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
