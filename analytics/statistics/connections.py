"""How many devices were connected at once, minute by minute.

All devices: what the gateways counted at each full minute, summed over the gateways. A gateway that died counts no
more, and its devices are counted where they went. With a category: the connections that were open at each full minute,
by what the device was like when it connected, as `spans.py` says; what was still open on a gateway ends with its last
count. A minute without any count had nobody connected. A minute is taken in when it is one minute old.
"""

from collections.abc import Sequence
from typing import Any

from analytics.statistics.question import Question
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import ConnectionsRow

MINUTE_MS = 60_000
_DAY_MS = 86_400_000

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

_LASTS = """
SELECT gateway, toUnixTimestamp64Milli(max(minute)) FROM connection_counts
WHERE appkey = {appkey:String} AND minute >= fromUnixTimestamp64Milli({start_ms:Int64}) GROUP BY gateway
"""
_ZERO = 2**31
"""A time and a change are sorted as one number: the time in the upper 32 bits, the change plus this in the lower."""


def _made(gateways: str) -> str:
    """Select the changes on the gateways of a parameter; what was changed before the start is changed at the start."""
    asked = f"""
      appkey = {{appkey:String}} AND category = {{category:String}} AND gateway IN {{{gateways}:Array(String)}}
      AND reader IN (SELECT identity FROM readers FINAL)"""  # noqa: S608
    return f"""
    SELECT info, gateway, greatest(toUnixTimestamp(minute), {{start_s:UInt32}}) AS at_s, change
    FROM connection_changes
    WHERE {asked}
      AND minute >= toDateTime({{midnight_s:UInt32}}, 'UTC') AND minute < toDateTime({{end_s:UInt32}}, 'UTC')
    UNION ALL
    SELECT info, gateway, {{start_s:UInt32}} AS at_s, change
    FROM connection_days WHERE {asked} AND day < toDate32(toDateTime({{midnight_s:UInt32}}, 'UTC'))"""  # noqa: S608


_OF_ALIVE = f"SELECT info, at_s, change FROM ({_made('alive')})"  # noqa: S608
_OF_ENDED = f"""
    SELECT info, part.1, part.2
    FROM (
      SELECT info, at_s, change, transform(gateway, {{ended:Array(String)}}, {{ends_s:Array(UInt32)}}, 0) AS after_s
      FROM ({_made("ended")}) WHERE at_s < after_s)
    ARRAY JOIN [(at_s, change), (after_s, -change)] AS part
"""  # noqa: S608


def _levels_of(changes: str) -> str:
    return f"""
WITH
  levels AS (
    SELECT info, arraySort(groupArray(bitShiftLeft(toUInt64(at_s), 32) + toUInt64(change + {_ZERO}))) AS packed,
      arrayMap(one -> toUInt32(bitShiftRight(one, 32)), packed) AS times,
      arrayCumSum(arrayMap(one -> toInt64(bitAnd(one, {2 * _ZERO - 1})) - {_ZERO}, packed)) AS of_times,
      arrayMap((at_s, next_s) -> toInt64(intDiv(next_s - at_s, 60)), times,
        arrayPushBack(arrayPopFront(times), {{end_s:UInt32}})) AS minutes,
      arrayFilter((level, lasted) -> lasted > 0, of_times, minutes) AS of_minutes
    FROM ({changes}) GROUP BY info)
SELECT info, arrayDotProduct(of_times, minutes), arrayMax(of_minutes) AS most,
  if(times[1] > {{start_s:UInt32}}, 0, arrayMin(of_minutes))
FROM levels WHERE most > 0 ORDER BY info
"""  # noqa: S608


_LEVELS = _levels_of(_OF_ALIVE)
_LEVELS_WITH_ENDED = _levels_of(f"{_OF_ALIVE} UNION ALL {_OF_ENDED}")


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
    minutes = _minutes(question.start_ms, end_ms)
    found = await _levels(clickhouse, question, end_ms) if minutes else []
    rows = [
        ConnectionsRow(info=info, average=total / minutes, maximum=most, minimum=least)
        for info, total, most, least in found
    ]
    if question.info is None:
        return rows
    return [row for row in rows if row.info == question.info] or [ConnectionsRow(info=question.info)]


async def _levels(clickhouse: ClickHouse, question: Question, end_ms: int) -> Sequence[Sequence[Any]]:
    """(value, sum over the minutes, greatest, least), only of values that somebody was connected with."""
    start_ms = _first_mark(question.start_ms)
    lasts = await clickhouse.rows(_LASTS, {"appkey": question.appkey, "start_ms": start_ms})
    ends = {gateway: _first_mark(last_ms + MINUTE_MS) for gateway, last_ms in lasts}
    ended = {gateway: after_ms // 1000 for gateway, after_ms in ends.items() if after_ms < end_ms}
    parameters = {
        "appkey": question.appkey,
        "category": question.category,
        "alive": [gateway for gateway in ends if gateway not in ended],
        "ended": list(ended),
        "ends_s": list(ended.values()),
        "start_s": _seconds(start_ms),
        "midnight_s": _seconds(start_ms // _DAY_MS * _DAY_MS),
        "end_s": _seconds(end_ms),
    }
    return await clickhouse.rows(_LEVELS_WITH_ENDED if ended else _LEVELS, parameters) if lasts else []


def _end_ms(question: Question) -> int:
    """Behind the last minute that is taken in: the end of the days, or what is complete by now."""
    complete_ms = question.now_ms // MINUTE_MS * MINUTE_MS
    return max(question.start_ms, min(question.end_ms, complete_ms))


def _minutes(start_ms: int, end_ms: int) -> int:
    """How many full minutes there are from `start_ms` up to but without `end_ms`."""
    return max(0, -(-end_ms // MINUTE_MS) - -(-start_ms // MINUTE_MS))


def _first_mark(start_ms: int) -> int:
    return -(-start_ms // MINUTE_MS) * MINUTE_MS


def _seconds(time_ms: int) -> int:
    return max(0, time_ms // 1000)
