"""Distinct devices that logged in within some days: exact, as unions of bitmaps.

The days that no shorter window tells apart are one band; a window is all bands up to its own.
"""

from collections.abc import Sequence
from datetime import date
from zoneinfo import ZoneInfo

from analytics.clickhouse import ClickHouse
from analytics.question import Question
from protos.analytics.v1.analytics_pb2 import LoginsRow

WINDOWS = (1, 2, 3, 4, 5, 6, 7, 30)
"""Days, the date included."""

_NOBODY = [0] * len(WINDOWS)
_CATEGORIES = ("region", "carrier", "channel", "sdk_version", "brand")
_VIEW = "login_days_of_sessions"
_DEFINITION = "SELECT as_select FROM system.tables WHERE database = currentDatabase() AND name = {view:String}"
_BY_DAY = f"""
SELECT appkey, category, toDate32(time, '{{zone}}') AS day, info,
  groupBitmapState(bitShiftLeft(toUInt64(partition), 32) + number) AS devices
FROM sessions
ARRAY JOIN {["", *_CATEGORIES]} AS category, ['', {", ".join(f"toString({name})" for name in _CATEGORIES)}] AS info
WHERE kind = 'logged_in'
GROUP BY appkey, category, day, info
"""  # noqa: S608
_LOGINS = f"""
WITH bands AS (
  SELECT info, place.1 AS date, arrayCount(window -> window <= place.2, {list(WINDOWS)}) AS band,
    groupBitmapMergeState(devices) AS devices
  FROM login_days ARRAY JOIN arrayMap(age -> (day + age, age), arrayFilter(
    age -> day + age >= {{first:Date32}} AND day + age <= {{last:Date32}}, range({max(WINDOWS)}))) AS place
  WHERE appkey = {{appkey:String}} AND category = {{category:String}}
    AND (NOT {{is_one:Bool}} OR info = {{info:String}})
    AND day > {{first:Date32}} - {max(WINDOWS)} AND day <= {{last:Date32}}
  GROUP BY info, date, band),
since AS (
  SELECT info, date, band, groupBitmapMergeState(devices) OVER (
    PARTITION BY info, date ORDER BY band ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS devices
  FROM bands)
SELECT info, date, {", ".join(f"maxIf(bitmapCardinality(devices), band <= {n})" for n in range(len(WINDOWS)))}
FROM since GROUP BY info, date ORDER BY date, info
"""  # noqa: S608


async def count_days(clickhouse: ClickHouse, zone: ZoneInfo) -> None:
    """Have logins counted by days of this zone from now on, and those that are stored; nothing to do if they are."""
    rows = await clickhouse.rows(_DEFINITION, {"view": _VIEW})
    if rows and f"'{zone.key}'" in rows[0][0]:
        return
    by_day = _BY_DAY.format(zone=zone.key)
    await clickhouse.command(f"DROP VIEW IF EXISTS {_VIEW} SYNC")
    await clickhouse.command("TRUNCATE TABLE login_days")
    await clickhouse.command(f"CREATE MATERIALIZED VIEW {_VIEW} TO login_days AS {by_day}")
    await clickhouse.command(f"INSERT INTO login_days {by_day}")


async def logins(clickhouse: ClickHouse, question: Question) -> list[LoginsRow]:
    """A row a day; with a category and no value of it a row for each value with a login within the longest window."""
    parameters = {
        "appkey": question.appkey,
        "category": question.category,
        "is_one": question.info is not None,
        "info": question.info or "",
        "first": question.days[0].date,
        "last": question.days[-1].date,
    }
    counts: dict[str, dict[str, Sequence[int]]] = {}
    for info, day, *of_windows in await clickhouse.rows(_LOGINS, parameters):
        counts.setdefault(date.isoformat(day), {})[info] = of_windows
    rows = []
    for one in question.days:
        found = counts.get(one.date, {})
        wanted = found if question.category and question.info is None else [question.info or ""]
        for info in wanted:
            of_info = dict(zip(WINDOWS, found.get(info, _NOBODY), strict=True))
            rows.append(LoginsRow(date=one.date, info=info if question.category else None, counts=of_info))
    return rows
