"""The answers to every kind of request about one app, for tests that compare stores."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

from protos.analytics.v1.analytics_pb2 import (
    AuditActionsRequest,
    AuditAppRequest,
    AuditDeviceRequest,
    AuditPushRequest,
    Category,
    ListAcksRequest,
    StatisticsKind,
    StatisticsRequest,
    UserKind,
)
from tests.analytics.audit.test_export import exported, table
from tests.analytics.records import APP
from tests.analytics.statistics.sync_store import dates

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

USERS = StatisticsKind.STATISTICS_KIND_USERS
BROADCASTS = StatisticsKind.STATISTICS_KIND_BROADCASTS
CATEGORIES = (Category.CATEGORY_UNSPECIFIED, Category.CATEGORY_CARRIER)
_TEN_YEARS_MS = 10 * 365 * 86_400_000


def statistics(msgids: Sequence[int], first: str, last: str) -> Iterator[StatisticsRequest]:
    """Yield requests of every kind over these dates, as a whole and by carrier; broadcasts listed and one by one."""
    for category in CATEGORIES:
        for kind in set(StatisticsKind.values()) - {BROADCASTS, StatisticsKind.STATISTICS_KIND_UNSPECIFIED}:
            for user_kind in UserKind.values() if kind == USERS else [UserKind.USER_KIND_UNSPECIFIED]:
                about = {"kind": kind, "category": category, "user_kind": user_kind, "info": "all"}
                yield StatisticsRequest(appkey=APP, dates=dates(first, last), **about)  # type: ignore[arg-type]
        for msgid in msgids:
            yield StatisticsRequest(appkey=APP, kind=BROADCASTS, category=category, info="all", msgid=msgid)
    yield StatisticsRequest(appkey=APP, kind=BROADCASTS)


async def answers(
    analytics: "AnalyticsServiceAsyncStub",
    *,
    broadcasts: Sequence[int],
    pushes: Sequence[int],
    token: str,
    first: str,
    last: str,
    now_ms: int,
) -> AsyncIterator[str]:
    """Yield each answer as one text; statistics with their request."""
    for request in statistics(broadcasts, first, last):
        yield f"{request}{await analytics.Statistics(request)}"
    for msgid in pushes:
        yield str(await analytics.AuditPush(AuditPushRequest(msgid=msgid, token=token)))
        rows, pieces = await exported(analytics, msgid)
        yield f"{rows} rows: {table(pieces)}"
    yield str(await analytics.AuditDevice(AuditDeviceRequest(appkey=APP, token=token)))
    life = AuditAppRequest(appkey=APP, from_ms=now_ms - _TEN_YEARS_MS, to_ms=now_ms + 1, limit=1000)
    yield str(await analytics.AuditApp(life))
    done = AuditActionsRequest(from_ms=now_ms - _TEN_YEARS_MS, to_ms=now_ms + 1, limit=1000)
    yield str(await analytics.AuditActions(done))
    yield str(await analytics.ListAcks(ListAcksRequest(appkey=APP, pos="0", limit=1000)))
