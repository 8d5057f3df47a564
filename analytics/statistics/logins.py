"""Statistics of log-ins by days of the service's time zone, and the sets of devices by day that they count."""

from datetime import date
from zoneinfo import ZoneInfo

from analytics.statistics.login_counts import LoginCounts
from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import LoginsRow
from services.domain.statistics.rows import LOGIN_DAYS

_NO_DEVICES = [0] * len(LOGIN_DAYS)
CATEGORIES = ("region", "carrier", "channel", "sdk_version", "brand")
"""The attributes by which log-ins are counted."""

LOGIN_DAYS_VIEW = "login_days_of_sessions"
"""The view that fills `login_days`; each start makes it anew if the zone is another one."""

_COMMENT = "SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = {view:String}"
_INGESTERS = "SELECT identity FROM readers FINAL LIMIT 1"


async def count_days(clickhouse: ClickHouse, zone: ZoneInfo) -> None:
    """Make ClickHouse collect log-ins by days of this zone, also those stored already. Does nothing if it does so.

    A store without ingesters is filled from the log again, with the attributes that devices have then. Its stored
    log-ins are left out here, because they would count under the old and the new attributes.
    """
    rows = await clickhouse.rows(_COMMENT, {"view": LOGIN_DAYS_VIEW})
    if rows and rows[0][0] == zone.key:
        return
    by_day = _login_days(zone)
    await clickhouse.command(f"DROP VIEW IF EXISTS {LOGIN_DAYS_VIEW} SYNC")
    for table in ("login_days", "login_counts", "login_before"):
        await clickhouse.command(f"TRUNCATE TABLE {table}")
    await clickhouse.command(f"CREATE MATERIALIZED VIEW {LOGIN_DAYS_VIEW} TO login_days AS {by_day}")
    if await clickhouse.rows(_INGESTERS):
        await clickhouse.command(f"INSERT INTO login_days {by_day}")
    await clickhouse.command(f"ALTER TABLE {LOGIN_DAYS_VIEW} MODIFY COMMENT '{zone.key}'")


async def logins(clickhouse: ClickHouse, query: StatisticsQuery) -> list[LoginsRow]:
    """Return a row for each day; with a category and no value, one for each value that has log-ins."""
    first, last = (date.fromisoformat(day.date) for day in (query.days[0], query.days[-1]))
    counts = await LoginCounts(clickhouse, query.appkey, query.category).between(first, last)
    rows = []
    for one in query.days:
        found = counts.get(date.fromisoformat(one.date), {})
        wanted = sorted(found) if query.category and query.info is None else [query.info or ""]
        for info in wanted:
            of_info = dict(zip(LOGIN_DAYS, found.get(info, _NO_DEVICES), strict=True))
            rows.append(LoginsRow(date=one.date, info=info if query.category else None, counts=of_info))
    return rows


def _login_days(zone: ZoneInfo) -> str:
    values = ", ".join(f"toString({name})" for name in CATEGORIES)
    return sql(__package__, "login_days", zone=zone.key, categories=str(["", *CATEGORIES]), values=values)
