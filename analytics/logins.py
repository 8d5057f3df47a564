"""Distinct devices that logged in within some days: exact, as unions of bitmaps."""

from analytics.clickhouse import ClickHouse
from analytics.days import days_before
from analytics.question import Question
from protos.analytics.v1.analytics_pb2 import LoginsRow

WINDOWS = (1, 2, 3, 4, 5, 6, 7, 30)
"""Days, the date included."""

_LOGINS = """
WITH days AS (
  SELECT info, partition, groupBitmapMergeState(devices) AS devices,
    indexOf({starts:Array(Int64)}, roundDown(toInt64(toUnixTimestamp(quarter)) * 1000, {starts:Array(Int64)})) AS day
  FROM logins
  WHERE appkey = {appkey:String} AND category = {category:String}
    AND (NOT {is_one:Bool} OR info = {info:String})
    AND quarter >= fromUnixTimestamp64Milli({start_ms:Int64}) AND quarter < fromUnixTimestamp64Milli({end_ms:Int64})
  GROUP BY info, partition, day)
SELECT info, date, days_back, sum(count) FROM (
  SELECT info, partition, date, days_back, groupBitmapMerge(devices) AS count
  FROM days
  ARRAY JOIN arrayFlatten(arrayMap(
    age -> arrayMap(window -> (day + age, window), arrayFilter(window -> window > age, {windows:Array(UInt8)})),
    arrayFilter(age -> day + age > {before:UInt16} AND day + age <= {last:UInt16}, range({before:UInt16} + 1))
  )) AS place
  GROUP BY info, partition, place.1 AS date, place.2 AS days_back)
GROUP BY info, date, days_back ORDER BY date, info
"""


async def logins(clickhouse: ClickHouse, question: Question) -> list[LoginsRow]:
    """A row a day; with a category and no value of it a row for each value with a login within the longest window."""
    before = max(WINDOWS) - 1
    days = days_before(question.days, before, question.zone)
    parameters = {
        "appkey": question.appkey,
        "category": question.category,
        "is_one": question.info is not None,
        "info": question.info or "",
        "starts": [day.start_ms for day in days],
        "start_ms": days[0].start_ms,
        "end_ms": days[-1].end_ms,
        "windows": list(WINDOWS),
        "before": before,
        "last": len(days),
    }
    counts: dict[int, dict[str, dict[int, int]]] = {}
    for info, place, window, count in await clickhouse.rows(_LOGINS, parameters):
        counts.setdefault(place, {}).setdefault(info, {})[window] = count
    rows = []
    for place, day in enumerate(question.days, before + 1):
        found = counts.get(place, {})
        wanted = found if question.category and question.info is None else [question.info or ""]
        for info in wanted:
            of_windows = {window: found.get(info, {}).get(window, 0) for window in WINDOWS}
            rows.append(LoginsRow(date=day.date, info=info if question.category else None, counts=of_windows))
    return rows
