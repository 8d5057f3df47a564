"""Statistics of registered devices. A device counts once, on the day and with the attributes of its registration.

A device that unregisters and registers again is not new, and a device that has left stays in the cumulative count.
"""

from itertools import accumulate

from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import UsersRow

_BEFORE_MS = -(2**63)
"""Stands for the time before the first day, as the day of registrations."""


async def users(clickhouse: ClickHouse, query: StatisticsQuery) -> list[UsersRow]:
    """Return a row for each day; with a category and no value, one for each value over all the days.

    Cumulative counts are of all devices registered up to the end of a day.
    """
    counts = await _counts(clickhouse, query)
    if query.category and query.info is None:
        totals = {info: _totals(of_days, query)[-1] for info, of_days in counts.items()}
        return [UsersRow(info=info, count=total) for info, total in totals.items() if total]
    info = query.info or ""
    days = _by_day(counts.get(info, {}), query)
    return [
        UsersRow(date=day.date, info=info if query.category else None, count=count)
        for day, count in zip(query.days, days, strict=True)
    ]


async def _counts(clickhouse: ClickHouse, query: StatisticsQuery) -> dict[str, dict[int, int]]:
    """Return, by value, the number of devices registered on each day (by its start), and before the first day."""
    parameters = {
        **{"appkey": query.appkey, "starts": [day.start_ms for day in query.days], "before_ms": _BEFORE_MS},
        **{"start_ms": query.start_ms, "end_ms": query.end_ms, "is_cumulative": query.is_cumulative},
        **{"column": query.category, "info": query.info},
    }
    info = "{column:Identifier}" if query.category else "''"
    condition = "info = {info:String}" if query.info is not None else "1"
    counts: dict[str, dict[int, int]] = {}
    registrations = sql(__package__, "registrations_by_day", info=info, condition=condition)
    for value, start_ms, count in await clickhouse.rows(registrations, parameters):
        counts.setdefault(value, {})[start_ms] = count
    return dict(sorted(counts.items()))


def _by_day(counts: dict[int, int], query: StatisticsQuery) -> list[int]:
    totals = _totals(counts, query)
    return totals if query.is_cumulative else [counts.get(day.start_ms, 0) for day in query.days]


def _totals(counts: dict[int, int], query: StatisticsQuery) -> list[int]:
    """Return totals up to the end of each day: of all time if cumulative, else since the first day."""
    before = counts.get(_BEFORE_MS, 0) if query.is_cumulative else 0
    return list(accumulate((counts.get(day.start_ms, 0) for day in query.days), initial=before))[1:]
