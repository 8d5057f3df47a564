"""A checked query for statistics."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from zoneinfo import ZoneInfo

from analytics.statistics.days import Day, days_between, parse_date, today
from protos.analytics.v1.analytics_pb2 import Category, StatisticsKind, StatisticsRequest, TimeScope, UserKind
from services.runtime.errors import InputError

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

    `msgid` is None for the list of broadcasts. `days` is empty for broadcasts; other kinds have at least one day.
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
            return cls(request.appkey, request.kind, now_ms)
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
