"""Statistics of how many devices were connected at once, minute by minute.

All devices: the connections that the gateways counted at each full minute, summed over the gateways. A gateway that
died counts no more; its devices count where they reconnected. With a category: the connections open at each full
minute, by the attributes of their devices when they connected (see `ingestion/connections/spans.py`); connections still
open on a gateway end with its last count. A minute without any count has no connections. A minute is counted once it is
one minute old.
"""

from collections.abc import Sequence
from typing import Any

from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import ConnectionsRow

MINUTE_MS = 60_000
_DAY_MS = 86_400_000

_LAST_COUNTS = """
SELECT gateway, toUnixTimestamp64Milli(max(minute)) FROM connection_counts
WHERE appkey = {appkey:String} AND minute >= fromUnixTimestamp64Milli({start_ms:Int64}) GROUP BY gateway
"""


async def connections(clickhouse: ClickHouse, query: StatisticsQuery) -> list[ConnectionsRow]:
    """Return a row for each day, or with a category one for each value over all the days."""
    if query.category:
        return await _by_value(clickhouse, query)
    return await _by_day(clickhouse, query)


async def _by_day(clickhouse: ClickHouse, query: StatisticsQuery) -> list[ConnectionsRow]:
    starts = [day.start_ms for day in query.days]
    parameters = {
        "appkey": query.appkey,
        "starts": starts,
        "start_ms": query.start_ms,
        "end_ms": _end_ms(query),
    }
    found = {day: counts for day, *counts in await clickhouse.rows(sql(__package__, "connections_by_day"), parameters)}
    rows = []
    for day in query.days:
        total, most, least, counted = found.get(day.start_ms, (0, 0, 0, 0))
        minutes = _minutes(day.start_ms, min(day.end_ms, _end_ms(query)))
        average = total / minutes if minutes else 0
        rows.append(
            ConnectionsRow(date=day.date, average=average, maximum=most, minimum=least if counted == minutes else 0)
        )
    return rows


async def _by_value(clickhouse: ClickHouse, query: StatisticsQuery) -> list[ConnectionsRow]:
    end_ms = _end_ms(query)
    minutes = _minutes(query.start_ms, end_ms)
    found = await _levels(clickhouse, query, end_ms) if minutes else []
    rows = [
        ConnectionsRow(info=info, average=total / minutes, maximum=most, minimum=least)
        for info, total, most, least in found
    ]
    if query.info is None:
        return rows
    return [row for row in rows if row.info == query.info] or [ConnectionsRow(info=query.info)]


async def _levels(clickhouse: ClickHouse, query: StatisticsQuery, end_ms: int) -> Sequence[Sequence[Any]]:
    """Return (value, sum over the minutes, maximum, minimum) for each value with connections."""
    start_ms = _full_minute(query.start_ms)
    last_counts = await clickhouse.rows(_LAST_COUNTS, {"appkey": query.appkey, "start_ms": start_ms})
    ends = {gateway: _full_minute(last_ms + MINUTE_MS) for gateway, last_ms in last_counts}
    ended = {gateway: after_ms // 1000 for gateway, after_ms in ends.items() if after_ms < end_ms}
    parameters = {
        "appkey": query.appkey,
        "category": query.category,
        "alive": [gateway for gateway in ends if gateway not in ended],
        "ended": list(ended),
        "ends_s": list(ended.values()),
        "start_s": _seconds(start_ms),
        "midnight_s": _seconds(start_ms // _DAY_MS * _DAY_MS),
        "end_s": _seconds(end_ms),
    }
    return await clickhouse.rows(_levels_query(has_ended=bool(ended)), parameters) if last_counts else []


def _levels_query(*, has_ended: bool) -> str:
    changes = sql(__package__, "connection_changes", gateways="{alive:Array(String)}", key="info")
    if has_ended:
        ended = sql(__package__, "connection_changes", gateways="{ended:Array(String)}", key="info, gateway")
        changes += f" UNION ALL {sql(__package__, 'ended_gateway_changes', changes=ended)}"
    return sql(__package__, "connection_levels", changes=changes)


def _end_ms(query: StatisticsQuery) -> int:
    """Return the end of the last minute that counts: that of the days, or of the last complete minute by now."""
    complete_ms = query.now_ms // MINUTE_MS * MINUTE_MS
    return max(query.start_ms, min(query.end_ms, complete_ms))


def _minutes(start_ms: int, end_ms: int) -> int:
    """Return how many full minutes lie from `start_ms` up to and not including `end_ms`."""
    return max(0, -(-end_ms // MINUTE_MS) - -(-start_ms // MINUTE_MS))


def _full_minute(start_ms: int) -> int:
    return -(-start_ms // MINUTE_MS) * MINUTE_MS


def _seconds(time_ms: int) -> int:
    return max(0, time_ms // 1000)
