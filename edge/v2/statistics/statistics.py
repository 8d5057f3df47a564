"""Statistics: what may be asked, and how the rows are answered."""

import datetime
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec

from edge.core.parsing.typed import ABSENT, decode
from edge.v2.push.replies import time_text
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
from services.runtime.errors import InputError

MAX_DAYS = 400
_BROADCASTS = 1
_CUSTOM_SCOPE = 3
_EVERY_MESSAGE = -1
_RULED_OUT: Mapping[int, tuple[int, ...]] = MappingProxyType({0: (), 1: (), 2: (1,), 3: (6, 7, 8)})
"""The categories that a type does not take."""

_YEARS = range(1970, 2149)
_OUTCOMES = ("target", "sent", "received", "shown", "clicked", "failed", "expired", "cancelled")
_LOGIN_DAYS = (1, 2, 3, 4, 5, 6, 7, 30)


class StatisticsBody(msgspec.Struct, frozen=True):
    """POST /v2/statistics. `type`: 0 long connections, 1 broadcasts, 2 registered users, 3 logged-in users."""

    kind: Literal[0, 1, 2, 3] = msgspec.field(name="type")
    param: msgspec.Raw


class Duration(msgspec.Struct, frozen=True):
    """`timeScope`: 0 today, 1 yesterday, 2 the last seven days, 3 the dates `from` to `to`."""

    time_scope: Literal[0, 1, 2, 3] = msgspec.field(name="timeScope")
    first: msgspec.Raw = msgspec.field(name="from", default=ABSENT)
    last: msgspec.Raw = msgspec.field(name="to", default=ABSENT)


class Param(msgspec.Struct, frozen=True):
    """Fields that the type and the category leave without effect are not read."""

    category: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    info: msgspec.Raw = msgspec.field(name="Info", default=ABSENT)
    info_small: msgspec.Raw = msgspec.field(name="info", default=ABSENT)
    msgid: msgspec.Raw = ABSENT
    usertype: msgspec.Raw = ABSENT


Category = Annotated[int, msgspec.Meta(ge=0, le=8)] | None
MessageId = Annotated[int, msgspec.Meta(ge=-1, le=2**53)] | None
UserType = Literal[0, 1] | None
Info = Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None


def statistics_request(raw: bytes, appkey: str) -> StatisticsRequest:
    """What is asked of the delivery history. InputError names the field."""
    body: StatisticsBody = decode(StatisticsBody, raw)
    param: Param = decode(Param, body.param, "param")
    asked = StatisticsRequest(appkey=appkey, kind=body.kind + 1)  # type: ignore[arg-type]
    if body.kind == _BROADCASTS:
        msgid = decode(MessageId, param.msgid, "param.msgid")
        if msgid is None or msgid == _EVERY_MESSAGE:
            return asked
        asked.msgid = msgid
    else:
        _read_duration(asked, decode(Duration | None, param.dur, "param.dur"))
    _read_category(asked, param, body.kind)
    if body.kind == 2:
        is_cumulative = decode(UserType, param.usertype, "param.usertype") == 1
        asked.user_kind = USER_KIND_CUMULATIVE if is_cumulative else USER_KIND_NEW
    return asked


def _read_category(asked: StatisticsRequest, param: Param, kind: int) -> None:
    category: Any = decode(Category, param.category, "param.category") or 0
    if category in _RULED_OUT[kind]:
        raise InputError(f"param.category {category} is not there for type {kind}")
    if category:
        info = decode(Info, param.info if param.info != ABSENT else param.info_small, "param.Info")
        if info is None:
            raise InputError(f"param.Info is missing: category {category} needs it")
        asked.category = category
        asked.info = info


def _read_duration(asked: StatisticsRequest, duration: Duration | None) -> None:
    if duration is None:
        raise InputError("param.dur is missing")
    if duration.time_scope != _CUSTOM_SCOPE:
        asked.scope = duration.time_scope + 1  # type: ignore[assignment]
        return
    first = _date(duration.first, "param.dur.from")
    last = _date(duration.last, "param.dur.to")
    if last < first:
        raise InputError("param.dur.to must not be before param.dur.from")
    if (last - first).days >= MAX_DAYS:
        raise InputError(f"param.dur must cover at most {MAX_DAYS} days")
    asked.dates.CopyFrom(Dates(**{"from": first.isoformat(), "to": last.isoformat()}))


def _date(raw: msgspec.Raw, place: str) -> datetime.date:
    text = decode(str | None, raw, place)
    if text is None:
        raise InputError(f"{place} is missing: timeScope {_CUSTOM_SCOPE} needs it")
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        date = datetime.date.min
    if date.isoformat() != text or date.year not in _YEARS:
        raise InputError(f"{place} must be a date like 2030-01-31")
    return date


def statistics_reply(found: StatisticsResponse, zone: ZoneInfo) -> dict[str, Any]:
    """The rows of the list that is filled, as the interface shows them; times in the service's zone."""
    data = [
        *map(_connections, found.connections),
        *(_broadcast(row, zone) for row in found.broadcasts),
        *map(_users, found.users),
        *map(_logins, found.logins),
    ]
    return {"result": 0, "desc": "ok", "data": data}


def _connections(row: ConnectionsRow) -> dict[str, Any]:
    counts = {"avgCount": round(row.average, 2), "maxCount": row.maximum, "minCount": row.minimum}
    return _date_and_info(row) | counts


def _broadcast(row: BroadcastRow, zone: ZoneInfo) -> dict[str, Any]:
    counts = {name: getattr(row, name) for name in _OUTCOMES}
    info = {"info": row.info} if row.HasField("info") else {}
    return {"msgid": row.msgid, "sendTime": time_text(row.sent_ms, zone)} | info | counts


def _users(row: UsersRow) -> dict[str, Any]:
    return _date_and_info(row) | {"count": row.count}


def _logins(row: LoginsRow) -> dict[str, Any]:
    info = {"info": row.info} if row.HasField("info") else {}
    return {"date": row.date} | info | {str(days): row.counts[days] for days in _LOGIN_DAYS}


def _date_and_info(row: ConnectionsRow | UsersRow) -> dict[str, Any]:
    date = {"date": row.date} if row.HasField("date") else {}
    return date | ({"info": row.info} if row.HasField("info") else {})
