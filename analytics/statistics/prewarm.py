"""Counts the log-ins of large apps before somebody asks, so that nobody waits for the first answer of a day."""

import asyncio
from datetime import timedelta
from zoneinfo import ZoneInfo

from analytics.statistics.days import today
from analytics.statistics.login_counts import Logins
from analytics.statistics.logins import CATEGORIES
from analytics.store.clickhouse import ClickHouse
from services.runtime.errors import UnavailableError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger

_EVERY_MS = 15 * 60_000
_MANY = 1_000_000
_LARGE = """
SELECT appkey FROM login_days WHERE category = '' AND day > {today:Date32} - 30 AND day <= {today:Date32}
GROUP BY appkey HAVING sum(rows) >= {many:UInt64} ORDER BY appkey
"""


class Prewarm:
    """A service: every quarter of an hour, the last seven days of apps with so many log-ins in thirty days."""

    name = "analytics log-ins"

    def __init__(self, clickhouse: ClickHouse, clock: Clock, zone: ZoneInfo, many: int = _MANY) -> None:
        self._clickhouse = clickhouse
        self._clock = clock
        self._zone = zone
        self._many = many

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            try:
                await self.prepare()
            except UnavailableError as error:
                logger.warning("log-ins cannot be counted ahead", error=str(error))
            await self._clock.sleep_until(self._clock.now_ms() + _EVERY_MS)

    async def prepare(self) -> None:
        """Once."""
        day = today(self._clock.now_ms(), self._zone)
        for (appkey,) in await self._clickhouse.rows(_LARGE, {"today": day, "many": self._many}):
            for category in ("", *CATEGORIES):
                await Logins(self._clickhouse, appkey, category).counts(day - timedelta(days=6), day)
