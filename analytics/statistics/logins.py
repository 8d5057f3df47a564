"""Log-ins by days of the service's time zone: the sets that are counted, and the answers made of the counts."""

from datetime import date
from zoneinfo import ZoneInfo

from analytics.statistics.login_counts import WINDOWS, Logins
from analytics.statistics.question import Question
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import LoginsRow

_NOBODY = [0] * len(WINDOWS)
CATEGORIES = ("region", "carrier", "channel", "sdk_version", "brand")
"""What log-ins are told apart by."""

_VIEW = "login_days_of_sessions"
_COMMENT = "SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = {view:String}"
_READERS = "SELECT identity FROM readers FINAL LIMIT 1"
_BY_DAY = f"""
SELECT appkey, category, toDate32(time, '{{zone}}') AS day, info, count() AS rows,
  groupBitmapState(bitShiftLeft(toUInt64(partition), 32) + number) AS devices
FROM sessions
ARRAY JOIN {["", *CATEGORIES]} AS category, ['', {", ".join(f"toString({name})" for name in CATEGORIES)}] AS info
WHERE kind = 'logged_in'
GROUP BY appkey, category, day, info
"""  # noqa: S608


async def count_days(clickhouse: ClickHouse, zone: ZoneInfo) -> None:
    """Have logins counted by days of this zone from now on, and those that are stored; nothing to do if they are.

    What is stored comes again from the log when the store has no readers, under what its devices are like by then, and
    would count under both.
    """
    rows = await clickhouse.rows(_COMMENT, {"view": _VIEW})
    if rows and rows[0][0] == zone.key:
        return
    by_day = _BY_DAY.format(zone=zone.key)
    await clickhouse.command(f"DROP VIEW IF EXISTS {_VIEW} SYNC")
    for table in ("login_days", "login_counts", "login_before"):
        await clickhouse.command(f"TRUNCATE TABLE {table}")
    await clickhouse.command(f"CREATE MATERIALIZED VIEW {_VIEW} TO login_days AS {by_day}")
    if await clickhouse.rows(_READERS):
        await clickhouse.command(f"INSERT INTO login_days {by_day}")
    await clickhouse.command(f"ALTER TABLE {_VIEW} MODIFY COMMENT '{zone.key}'")


async def logins(clickhouse: ClickHouse, question: Question) -> list[LoginsRow]:
    """A row a day; with a category and no value of it a row for each value with a login within the longest window."""
    first, last = (date.fromisoformat(day.date) for day in (question.days[0], question.days[-1]))
    counts = await Logins(clickhouse, question.appkey, question.category).counts(first, last)
    rows = []
    for one in question.days:
        found = counts.get(date.fromisoformat(one.date), {})
        wanted = sorted(found) if question.category and question.info is None else [question.info or ""]
        for info in wanted:
            of_info = dict(zip(WINDOWS, found.get(info, _NOBODY), strict=True))
            rows.append(LoginsRow(date=one.date, info=info if question.category else None, counts=of_info))
    return rows
