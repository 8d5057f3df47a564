"""A checked query for statistics, and the days of a time zone."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from protos.analytics.v1.analytics_pb2 import Category, StatisticsKind, StatisticsRequest, TimeScope, UserKind
from services.errors import Code, InputError

# Days of a time zone: 24 hours, or more or fewer on days when the clocks change.

FIRST = date(1970, 1, 1)
LAST = date(2199, 12, 31)
MAX_DAYS = 400
"""The greatest number of days in one query."""


class Day(NamedTuple):
    """From `start_ms` up to and not including `end_ms`, in milliseconds since 1970 UTC."""

    date: str
    start_ms: int
    end_ms: int


def days_between(first: date, last: date, zone: ZoneInfo) -> list[Day]:
    """Return the days from `first` to `last`, both included. InputError: none, too many, or out of range."""
    if first > last:
        raise InputError(Code.DATES_IN_WRONG_ORDER)
    if first < FIRST or last > LAST:
        raise InputError(Code.DATES_OUT_OF_RANGE, first=str(FIRST), last=str(LAST))
    count = (last - first).days + 1
    if count > MAX_DAYS:
        raise InputError(Code.TOO_MANY_DAYS, days=count, most=MAX_DAYS)
    return [_day(first + timedelta(days=after), zone) for after in range(count)]


def today(now_ms: int, zone: ZoneInfo) -> date:
    return datetime.fromtimestamp(now_ms / 1000, zone).date()


def parse_date(text: str, name: str) -> date:
    """Parse YYYY-MM-DD. InputError: the text has another form, or there is no such day."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise InputError(Code.NO_DATE, at=name)
    return day


def _day(day: date, zone: ZoneInfo) -> Day:
    return Day(day.isoformat(), _start_ms(day, zone), _start_ms(day + timedelta(days=1), zone))


def _start_ms(day: date, zone: ZoneInfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp() * 1000)


ALL = "all"
_MAX_MSGID = 2**63
_ALL_CATEGORIES = tuple(Category.values())
_USERS = tuple(category for category in _ALL_CATEGORIES if category != Category.CATEGORY_REGION)
_LOGINS = tuple(category for category in _ALL_CATEGORIES if category < Category.CATEGORY_RESOLUTION)
_CATEGORIES = {
    StatisticsKind.STATISTICS_KIND_CONNECTIONS: _ALL_CATEGORIES,
    StatisticsKind.STATISTICS_KIND_BROADCASTS: _ALL_CATEGORIES,
    StatisticsKind.STATISTICS_KIND_USERS: _USERS,
    StatisticsKind.STATISTICS_KIND_LOGINS: _LOGINS,
}


@dataclass(frozen=True, slots=True)
class StatisticsQuery:
    """`category` is a column's name, or "" for no distribution; `info` is one value of it, or None for all of them.

    `msgid` is None for the list of broadcasts. `days` is empty for one broadcast, and for a list of the latest ones;
    other kinds have at least one day.
    """

    appkey: str
    kind: StatisticsKind.ValueType
    now_ms: int
    category: str = ""
    info: str | None = None
    days: Sequence[Day] = ()
    msgid: int | None = None
    is_cumulative: bool = False

    @property
    def start_ms(self) -> int:
        return self.days[0].start_ms

    @property
    def end_ms(self) -> int:
        return self.days[-1].end_ms

    @classmethod
    def of(cls, request: StatisticsRequest, now_ms: int, zone: ZoneInfo) -> "StatisticsQuery":
        """Return the checked query of a request. InputError names the field that is wrong."""
        if not request.appkey:
            raise InputError("appkey is needed")
        if request.kind not in _CATEGORIES:
            raise InputError("kind is no kind of statistics")
        is_broadcasts = request.kind == StatisticsKind.STATISTICS_KIND_BROADCASTS
        if is_broadcasts and not request.HasField("msgid"):
            return cls(
                *(request.appkey, request.kind, now_ms),
                days=_days(request, now_ms, zone) if request.HasField("dates") else [],
            )
        if is_broadcasts and not 0 < request.msgid < _MAX_MSGID:
            raise InputError("msgid is not a message id")
        return cls(
            *(request.appkey, request.kind, now_ms, _category(request), _info(request)),
            days=[] if is_broadcasts else _days(request, now_ms, zone),
            msgid=request.msgid if is_broadcasts else None,
            is_cumulative=request.user_kind == UserKind.USER_KIND_CUMULATIVE,
        )


def _category(request: StatisticsRequest) -> str:
    if request.category not in _CATEGORIES[request.kind]:
        raise InputError("category does not go with this kind of statistics")
    if request.category == Category.CATEGORY_UNSPECIFIED:
        return ""
    return Category.Name(request.category).removeprefix("CATEGORY_").lower()


def _info(request: StatisticsRequest) -> str | None:
    if request.category == Category.CATEGORY_UNSPECIFIED:
        return None
    if not request.HasField("info"):
        raise InputError("info is needed with a category")
    return None if request.info == ALL else request.info


def _days(request: StatisticsRequest, now_ms: int, zone: ZoneInfo) -> list[Day]:
    day = today(now_ms, zone)
    match request.WhichOneof("period"):
        case "dates":
            first = parse_date(getattr(request.dates, "from"), "from")
            return days_between(first, parse_date(request.dates.to, "to"), zone)
        case "scope":
            match request.scope:
                case TimeScope.TIME_SCOPE_TODAY:
                    return days_between(day, day, zone)
                case TimeScope.TIME_SCOPE_YESTERDAY:
                    return days_between(day - timedelta(days=1), day - timedelta(days=1), zone)
                case TimeScope.TIME_SCOPE_LAST_SEVEN_DAYS:
                    return days_between(day - timedelta(days=6), day, zone)
    raise InputError("a period is needed: a time scope, or dates")
