"""How many devices were connected at once, minute by minute.

All devices: what the gateways counted at each full minute, summed over the gateways. A gateway that died counts no
more, and its devices are counted where they went. With a category: the connections that were open at each full minute,
by what the device was like when it connected; one that was never closed ends when its device connects again, or with
the last count of its gateway. A minute without any count had nobody connected. A minute is taken in when it is one
minute old.
"""

from collections.abc import Sequence
from typing import Any

from analytics.clickhouse import ClickHouse
from analytics.question import Question
from protos.analytics.v1.analytics_pb2 import ConnectionsRow

MINUTE_MS = 60_000

_BY_DAY = """
SELECT roundDown(minute_ms, {starts:Array(Int64)}) AS day, sum(total), max(total), min(total), count()
FROM (
  SELECT toUnixTimestamp64Milli(minute) AS minute_ms, sum(connections) AS total
  FROM connection_counts FINAL
  WHERE appkey = {appkey:String} AND minute >= fromUnixTimestamp64Milli({start_ms:Int64})
    AND minute < fromUnixTimestamp64Milli({end_ms:Int64})
  GROUP BY minute_ms)
GROUP BY day
"""

_LIVES = """
SELECT gateway, toUnixTimestamp64Milli(min(minute)) AS first_ms, toUnixTimestamp64Milli(max(minute)) AS last_ms
FROM connection_counts
WHERE appkey = {appkey:String}
GROUP BY gateway HAVING last_ms >= {start_ms:Int64} AND first_ms < {end_ms:Int64}
"""
_BY_VALUE = f"""
WITH
  {{gateways:Array(String)}} AS gateways,
  {{lasts:Array(Int64)}} AS lasts,
  connections AS (
    SELECT connection, any(partition) AS partition, any(number) AS number, anyIf(gateway, kind = 'opened') AS gateway,
      anyIf({{column:Identifier}}, kind = 'opened') AS info,
      toUnixTimestamp64Milli(minIf(time, kind = 'opened')) AS opened_ms,
      if(countIf(kind = 'closed') = 0, 9223372036854775807,
        toUnixTimestamp64Milli(minIf(time, kind = 'closed'))) AS closed_ms
    FROM sessions
    WHERE appkey = {{appkey:String}} AND kind IN ('opened', 'closed') AND connection != 0
      AND time >= fromUnixTimestamp64Milli({{since_ms:Int64}}) AND time < fromUnixTimestamp64Milli({{end_ms:Int64}})
    GROUP BY connection HAVING countIf(kind = 'opened') > 0),
  spans AS (
    SELECT gateway, info, opened_ms,
      leadInFrame(opened_ms, 1, 9223372036854775807) OVER (PARTITION BY partition, number
        ORDER BY connection ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS again_ms,
      least(closed_ms, again_ms) AS left_ms,
      transform(gateway, gateways, lasts, -1) AS last_ms
    FROM connections),
  marks AS (
    SELECT info,
      greatest(intDiv(opened_ms + {MINUTE_MS - 1}, {MINUTE_MS}) * {MINUTE_MS}, {{start_ms:Int64}}) AS first_ms,
      least(intDiv(least(left_ms, last_ms + {MINUTE_MS}) + {MINUTE_MS - 1}, {MINUTE_MS}) * {MINUTE_MS},
        {{end_ms:Int64}}) AS after_ms
    FROM spans WHERE last_ms >= 0 AND after_ms > first_ms),
  changes AS (
    SELECT info, change.1 AS at_ms, sum(change.2) AS more
    FROM marks ARRAY JOIN [(first_ms, 1), (after_ms, -1), ({{start_ms:Int64}}, 0)] AS change
    GROUP BY info, at_ms),
  levels AS (
    SELECT info, at_ms, sum(more) OVER (PARTITION BY info ORDER BY at_ms) AS level,
      leadInFrame(at_ms, 1, {{end_ms:Int64}}) OVER (
        PARTITION BY info ORDER BY at_ms ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS next_ms
    FROM changes)
SELECT info, sum(level * intDiv(next_ms - at_ms, {MINUTE_MS})), max(level), min(level)
FROM levels WHERE next_ms > at_ms GROUP BY info ORDER BY info
"""  # noqa: S608
_BEFORE_FIRST_COUNT_MS = 2 * MINUTE_MS


async def connections(clickhouse: ClickHouse, question: Question) -> list[ConnectionsRow]:
    """A row a day, or with a category one a value over all the days."""
    if question.category:
        return await _by_value(clickhouse, question)
    return await _by_day(clickhouse, question)


async def _by_day(clickhouse: ClickHouse, question: Question) -> list[ConnectionsRow]:
    starts = [day.start_ms for day in question.days]
    parameters = {
        "appkey": question.appkey,
        "starts": starts,
        "start_ms": question.start_ms,
        "end_ms": _end_ms(question),
    }
    found = {day: counts for day, *counts in await clickhouse.rows(_BY_DAY, parameters)}
    rows = []
    for day in question.days:
        total, most, least, counted = found.get(day.start_ms, (0, 0, 0, 0))
        minutes = _minutes(day.start_ms, min(day.end_ms, _end_ms(question)))
        average = total / minutes if minutes else 0
        rows.append(
            ConnectionsRow(date=day.date, average=average, maximum=most, minimum=least if counted == minutes else 0)
        )
    return rows


async def _by_value(clickhouse: ClickHouse, question: Question) -> list[ConnectionsRow]:
    end_ms = _end_ms(question)
    period = {"appkey": question.appkey, "start_ms": _first_mark(question.start_ms), "end_ms": end_ms}
    lives = await clickhouse.rows(_LIVES, period)
    found: Sequence[Sequence[Any]] = []
    if lives:
        parameters = {
            **period,
            "column": question.category,
            "gateways": [gateway for gateway, _, _ in lives],
            "lasts": [last_ms for _, _, last_ms in lives],
            "since_ms": min(first_ms for _, first_ms, _ in lives) - _BEFORE_FIRST_COUNT_MS,
        }
        found = await clickhouse.rows(_BY_VALUE, parameters)
    minutes = _minutes(question.start_ms, end_ms)
    rows = [
        ConnectionsRow(info=info, average=total / minutes, maximum=most, minimum=least)
        for info, total, most, least in found
    ]
    if question.info is None:
        return rows
    return [row for row in rows if row.info == question.info] or [ConnectionsRow(info=question.info)]


def _end_ms(question: Question) -> int:
    """Behind the last minute that is taken in: the end of the days, or what is complete by now."""
    complete_ms = question.now_ms // MINUTE_MS * MINUTE_MS
    return max(question.start_ms, min(question.end_ms, complete_ms))


def _minutes(start_ms: int, end_ms: int) -> int:
    """How many full minutes there are from `start_ms` up to but without `end_ms`."""
    return max(0, -(-end_ms // MINUTE_MS) - -(-start_ms // MINUTE_MS))


def _first_mark(start_ms: int) -> int:
    return -(-start_ms // MINUTE_MS) * MINUTE_MS
