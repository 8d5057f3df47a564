"""Counts the log-ins of large apps ahead of queries, so that the first query of a day does not wait for it."""

import asyncio
from datetime import timedelta
from zoneinfo import ZoneInfo

from analytics.statistics.days import today
from analytics.statistics.login_counts import LoginCounts
from analytics.statistics.logins import CATEGORIES
from analytics.store.clickhouse import ClickHouse
from services.runtime.errors import UnavailableError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger

_EVERY_MS = 15 * 60_000
_MIN_LOGINS = 1_000_000
_LARGE = """
SELECT appkey FROM login_days WHERE category = '' AND day > {today:Date32} - 30 AND day <= {today:Date32}
GROUP BY appkey HAVING sum(rows) >= {min_logins:UInt64} ORDER BY appkey
"""


class Prewarm:
    """A service that every 15 minutes counts the last seven days of apps with `min_logins` log-ins in thirty days."""

    name = "analytics log-ins"

    def __init__(self, clickhouse: ClickHouse, clock: Clock, zone: ZoneInfo, min_logins: int = _MIN_LOGINS) -> None:
        self._clickhouse = clickhouse
        self._clock = clock
        self._zone = zone
        self._min_logins = min_logins

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            try:
                await self.count()
            except UnavailableError as error:
                logger.warning("log-ins cannot be counted ahead", error=str(error))
            await self._clock.sleep_until(self._clock.now_ms() + _EVERY_MS)

    async def count(self) -> None:
        day = today(self._clock.now_ms(), self._zone)
        for (appkey,) in await self._clickhouse.rows(_LARGE, {"today": day, "min_logins": self._min_logins}):
            for category in ("", *CATEGORIES):
                await LoginCounts(self._clickhouse, appkey, category).between(day - timedelta(days=6), day)
