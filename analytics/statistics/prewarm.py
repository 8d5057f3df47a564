"""Prepares answers ahead of questions: opens the tables at the start, and counts the log-ins of large apps."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from analytics.acks import AckReader
from analytics.audit.push import audit_push
from analytics.statistics.answers import answer
from analytics.statistics.logins import CATEGORIES, LoginCounts
from analytics.statistics.query import StatisticsQuery, days_between, today
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import Category, StatisticsKind, StatisticsRequest, TimeScope, UserKind
from services.errors import NotFoundError, UnavailableError
from services.process.clock import Clock
from services.process.logs import logger

_EVERY_MS = 15 * 60_000
_MIN_LOGINS = 1_000_000
_LARGE = """
SELECT appkey FROM login_days WHERE category = '' AND day > {today:Date32} - 30 AND day <= {today:Date32}
GROUP BY appkey HAVING sum(rows) >= {min_logins:UInt64} ORDER BY appkey
"""
_NEWEST = "SELECT msgid, appkey FROM pushes ORDER BY msgid DESC LIMIT 1"
_NEWEST_BROADCAST = """
SELECT msgid FROM broadcasts WHERE appkey = {appkey:String} ORDER BY time DESC, msgid DESC LIMIT 1
"""
_READ_AHEAD = ("device_tokens", "login_before")
"""Tables of which a first answer reads a thousand blocks, or some megabytes."""


class Prewarm:
    """A service that prepares the first answers after a start and after midnight.

    At its start it audits the newest push, and asks for statistics and acknowledgements of its app, so that ClickHouse
    has read the keys of the tables; it counts the app's newest broadcast by region. The system reads the tokens of
    devices from the disk meanwhile, since a page of acknowledgements looks up a thousand of them. Then, every 15
    minutes and at midnight, it counts the last seven days of apps with `min_logins` log-ins in thirty days.
    """

    name = "analytics prewarming"

    def __init__(self, clickhouse: ClickHouse, clock: Clock, zone: ZoneInfo, min_logins: int = _MIN_LOGINS) -> None:
        self._clickhouse = clickhouse
        self._clock = clock
        self._zone = zone
        self._min_logins = min_logins

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        opened = False
        while True:
            now_ms = self._clock.now_ms()
            try:
                if not opened:
                    await self.open_tables()
                    opened = True
                await self.count()
            except UnavailableError as error:
                logger.warning("counts of log-ins could not be prepared", error=str(error))
            await self._clock.sleep_until(min(now_ms + _EVERY_MS, self._midnight_ms(now_ms)))

    async def open_tables(self) -> None:
        """Run once the queries of the usual first questions, so that their tables are read."""
        for table in _READ_AHEAD:
            await self._clickhouse.read_ahead(table)
        for msgid, appkey in await self._clickhouse.rows(_NEWEST):
            try:
                await audit_push(self._clickhouse, msgid, self._zone)
                for question in _questions(await self._clickhouse.rows(_NEWEST_BROADCAST, {"appkey": appkey})):
                    request = StatisticsRequest(appkey=appkey, **question)
                    query = StatisticsQuery.of(request, self._clock.now_ms(), self._zone)
                    await answer(self._clickhouse, query)
                await self._first_acknowledgement(appkey)
            except NotFoundError:
                return

    async def _first_acknowledgement(self, appkey: str) -> None:
        now_ms = self._clock.now_ms()
        reader = AckReader(self._clickhouse, appkey, 1, {}, _none_behind, now_ms=now_ms, visible_ms=now_ms)
        await reader.page({}, 1)

    async def count(self) -> None:
        """Store the counts of log-ins that statistics of large apps need for the last seven days."""
        day = today(self._clock.now_ms(), self._zone)
        for (appkey,) in await self._clickhouse.rows(_LARGE, {"today": day, "min_logins": self._min_logins}):
            for category in ("", *CATEGORIES):
                await LoginCounts(self._clickhouse, appkey, category).prepare(day - timedelta(days=6), day)

    def _midnight_ms(self, now_ms: int) -> int:
        day = today(now_ms, self._zone)
        return days_between(day, day, self._zone)[0].end_ms


async def _none_behind() -> int:
    return 0


def _questions(broadcasts: Sequence[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield the fields of questions of each kind but log-ins, whose counts `count` prepares."""
    kinds = StatisticsKind
    week = {"scope": TimeScope.TIME_SCOPE_LAST_SEVEN_DAYS}
    by_region = {"category": Category.CATEGORY_REGION, "info": "all"}
    by_brand = {"category": Category.CATEGORY_BRAND, "info": "all"}
    yield {"kind": kinds.STATISTICS_KIND_CONNECTIONS, **week}
    yield {"kind": kinds.STATISTICS_KIND_CONNECTIONS, **week, **by_region}
    yield {"kind": kinds.STATISTICS_KIND_USERS, **week, **by_brand, "user_kind": UserKind.USER_KIND_CUMULATIVE}
    yield {"kind": kinds.STATISTICS_KIND_BROADCASTS}
    for (msgid,) in broadcasts:
        yield {"kind": kinds.STATISTICS_KIND_BROADCASTS, "msgid": msgid, **by_region}
