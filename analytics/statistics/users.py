"""Registered devices: each counts once, on the day it registered first, with what it was like then.

A device that unregisters and comes back is no new one, and one that left stays among all that ever registered.
"""

from itertools import accumulate

from analytics.statistics.question import Question
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import UsersRow

_BEFORE_MS = -(2**63)
_REGISTRATIONS = """
SELECT info, toInt64({{before_ms:Int64}}) AS day, count() FROM (
  SELECT {info} AS info FROM registrations
  WHERE appkey = {{appkey:String}} AND registered < fromUnixTimestamp64Milli({{start_ms:Int64}})
    AND {{is_cumulative:Bool}} AND {wanted})
GROUP BY info
UNION ALL
SELECT {info} AS info, roundDown(toUnixTimestamp64Milli(registered), {{starts:Array(Int64)}}) AS day, count()
FROM registrations
WHERE appkey = {{appkey:String}} AND registered >= fromUnixTimestamp64Milli({{start_ms:Int64}})
  AND registered < fromUnixTimestamp64Milli({{end_ms:Int64}}) AND {wanted}
GROUP BY info, day
"""


async def users(clickhouse: ClickHouse, question: Question) -> list[UsersRow]:
    """A row a day; with a category and no value of it a row a value, of all the days or up to the end of the last."""
    counts = await _counts(clickhouse, question)
    if question.category and question.info is None:
        totals = {info: _totals(of_days, question)[-1] for info, of_days in counts.items()}
        return [UsersRow(info=info, count=total) for info, total in totals.items() if total]
    info = question.info or ""
    days = _by_day(counts.get(info, {}), question)
    return [
        UsersRow(date=day.date, info=info if question.category else None, count=count)
        for day, count in zip(question.days, days, strict=True)
    ]


async def _counts(clickhouse: ClickHouse, question: Question) -> dict[str, dict[int, int]]:
    """By value, the devices that registered on each day, named by its start, and before the first day."""
    parameters = {
        **{"appkey": question.appkey, "starts": [day.start_ms for day in question.days], "before_ms": _BEFORE_MS},
        **{"start_ms": question.start_ms, "end_ms": question.end_ms, "is_cumulative": question.is_cumulative},
        **{"column": question.category, "info": question.info},
    }
    info = "{column:Identifier}" if question.category else "''"
    wanted = "info = {info:String}" if question.info is not None else "1"
    counts: dict[str, dict[int, int]] = {}
    for value, start_ms, count in await clickhouse.rows(_REGISTRATIONS.format(info=info, wanted=wanted), parameters):
        counts.setdefault(value, {})[start_ms] = count
    return dict(sorted(counts.items()))


def _by_day(counts: dict[int, int], question: Question) -> list[int]:
    totals = _totals(counts, question)
    return totals if question.is_cumulative else [counts.get(day.start_ms, 0) for day in question.days]


def _totals(counts: dict[int, int], question: Question) -> list[int]:
    """Up to the end of each day: since ever if cumulative, else since the first day."""
    before = counts.get(_BEFORE_MS, 0) if question.is_cumulative else 0
    return list(accumulate((counts.get(day.start_ms, 0) for day in question.days), initial=before))[1:]
