"""Requests of statistics, acknowledgements and audits, timed on a filled store as after a start of the service.

python -m bench.analytics.questions DIRECTORY      a directory that `python -m bench.analytics --keep` has filled
"""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from analytics.acks import AckReader
from analytics.audit.push import audit_push
from analytics.ingestion.ingestion import sources
from analytics.statistics.answers import answer
from analytics.statistics.prewarm import Prewarm
from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from bench.analytics.history import APP, FIRST_ID, LOGIN, PARTITIONS, History
from protos.analytics.v1.analytics_pb2 import Category, StatisticsKind, StatisticsRequest, TimeScope, UserKind
from services.domain.topics import DELIVERIES, TOPICS
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock

ZONE = ZoneInfo("Asia/Shanghai")
Ask = Callable[[], Awaitable[object]]


class Question(NamedTuple):
    """A request to measure: `ask` makes it as the service does, `raw` by SQL over the raw rows.

    `name` is its name in the table. `before` runs before each repetition, outside the measured time.
    """

    name: str
    ask: Ask
    raw: Ask | None = None
    before: Ask | None = None


_RAW_LIST = """
SELECT msgid, kind, uniqExact(partition, number) FROM deliveries
WHERE appkey = {app:String} AND time > now64(3) - INTERVAL 30 DAY
  AND msgid NOT IN (SELECT arrayJoin(range(msgid, last_msgid + 1)) FROM pushes WHERE kind = 'unicast')
GROUP BY msgid, kind
"""
_RAW_ONE = """
SELECT kind, uniqExact(partition, number) FROM deliveries
WHERE appkey = {app:String} AND msgid = {msgid:UInt64} GROUP BY kind
"""
_RAW_VALUES = """
SELECT region, kind, uniqExact(partition, number) FROM deliveries
WHERE appkey = {app:String} AND msgid = {msgid:UInt64} GROUP BY region, kind
"""
_RAW_COUNTS = """
SELECT toDate(at, 'Asia/Shanghai') AS day, avg(total), max(total), min(total) FROM (
  SELECT minute AS at, sum(connections) AS total FROM connection_counts
  WHERE appkey = {app:String} AND minute > now64(3) - INTERVAL 7 DAY GROUP BY at)
GROUP BY day
"""
_RAW_LEVELS = """
SELECT region, avg(level), max(level), min(level) FROM (
  SELECT region, toStartOfMinute(time) AS minute,
    sum(sum(if(kind = 'opened', 1, -1))) OVER (PARTITION BY region ORDER BY minute) AS level
  FROM sessions WHERE appkey = {app:String} AND kind IN ('opened', 'closed') AND time > now64(3) - INTERVAL 7 DAY
  GROUP BY region, minute)
GROUP BY region
"""
_RAW_USERS = """
SELECT toDate(first, 'Asia/Shanghai') AS day, count() FROM (
  SELECT min(registered) AS first FROM devices WHERE appkey = {app:String} GROUP BY partition, number)
WHERE day > toDate(now(), 'Asia/Shanghai') - 7 GROUP BY day
"""
_RAW_ALL_USERS = """
SELECT brand, count() FROM (
  SELECT argMin(brand, _offset) AS brand FROM devices WHERE appkey = {app:String} GROUP BY partition, number)
GROUP BY brand
"""
_RAW_LOGINS = """
SELECT
  uniqExactIf((partition, number), age < 1), uniqExactIf((partition, number), age < 2),
  uniqExactIf((partition, number), age < 3), uniqExactIf((partition, number), age < 4),
  uniqExactIf((partition, number), age < 5), uniqExactIf((partition, number), age < 6),
  uniqExactIf((partition, number), age < 7), uniqExact((partition, number))
FROM (
  SELECT partition, number, toDate(now(), 'Asia/Shanghai') - toDate(time, 'Asia/Shanghai') AS age FROM sessions
  WHERE appkey = {app:String} AND kind = 'logged_in' AND time > now64(3) - INTERVAL 30 DAY)
"""
_RAW_ACKS = """
SELECT msgid, partition, number, min(time) AS received FROM deliveries
WHERE appkey = {app:String} AND kind = 'received'
  AND time BETWEEN now64(3) - INTERVAL 2 DAY AND now64(3) - INTERVAL 15 MINUTE
  AND msgid IN (SELECT arrayJoin(range(msgid, last_msgid + 1)) FROM pushes WHERE kind = 'unicast')
GROUP BY msgid, partition, number ORDER BY received LIMIT 1000
"""


async def answered(directory: Path, rounds: int, *, prepared: bool) -> dict[str, Any]:
    """Open the store, prepare it as the service does at its start, and measure every request; times in ms."""
    history = History(**json.loads((directory / "history.json").read_text()))
    log = SqliteLog(directory / "log" / "events.db", TOPICS, read_only=True)
    ends = await log.ends(partition for partition in sources(PARTITIONS) if partition.topic == DELIVERIES.name)
    clickhouse = ClickHouse(None, directory / "chdb")
    started = time.perf_counter()
    await clickhouse.open()
    opened = time.perf_counter()
    try:
        if prepared:
            prewarm = Prewarm(clickhouse, ManualClock(history.now_ms), ZONE)
            await prewarm.open_tables()
            await prewarm.count()
        ready = time.perf_counter()
        every = questions(history, clickhouse, {partition.number: end for partition, end in ends.items()})
        return {
            "open_ms": round((opened - started) * 1000),
            "prepare_ms": round((ready - opened) * 1000),
            "rows": [first | await repeated(asked, rounds) for asked, first in await first_answers(every)],
        }
    finally:
        await clickhouse.close()
        await log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=10, help="answers of each kind after the first")
    parser.add_argument("--unprepared", action="store_true", help="measure before answers are prepared")
    arguments = parser.parse_args()
    found = asyncio.run(answered(arguments.directory, arguments.rounds, prepared=not arguments.unprepared))
    print(json.dumps(found))


def questions(history: History, clickhouse: ClickHouse, ends: Mapping[int, int]) -> list[Question]:
    last = FIRST_ID + history.broadcasts - 1
    raw = {"app": APP, "msgid": last}
    numbers = itertools.count()

    def statistic(kind: StatisticsKind.ValueType, **fields: Any) -> Ask:
        request = StatisticsRequest(appkey=APP, kind=kind, **fields)
        question = StatisticsQuery.of(request, history.now_ms, ZONE)
        return lambda: answer(clickhouse, question)

    async def caught_up() -> int:
        return 0

    def page() -> Awaitable[object]:
        now_ms = history.now_ms
        reader = AckReader(*(clickhouse, APP, PARTITIONS, ends, caught_up), now_ms=now_ms, visible_ms=now_ms - 900_000)
        return reader.page({}, 1000)

    def login() -> Awaitable[object]:
        return clickhouse.command(LOGIN, {"app": APP, "now_ms": history.now_ms, "number": next(numbers)})

    async def audit() -> object:
        return await audit_push(clickhouse, last, ZONE)

    everyone = {"user_kind": UserKind.USER_KIND_CUMULATIVE}
    today = TimeScope.TIME_SCOPE_TODAY
    week = {"scope": TimeScope.TIME_SCOPE_LAST_SEVEN_DAYS}
    by_region = {"category": Category.CATEGORY_REGION, "info": "all"}
    by_brand = {"category": Category.CATEGORY_BRAND, "info": "all"}
    kinds = StatisticsKind
    return [
        Question("audit of a push", audit),
        Question(
            "connections, 7 days",
            statistic(kinds.STATISTICS_KIND_CONNECTIONS, **week),
            lambda: clickhouse.rows(_RAW_COUNTS, raw),
        ),
        Question(
            "connections by region, 7 days",
            statistic(kinds.STATISTICS_KIND_CONNECTIONS, **week, **by_region),
            lambda: clickhouse.rows(_RAW_LEVELS, raw),
        ),
        Question(
            "list of broadcasts", statistic(kinds.STATISTICS_KIND_BROADCASTS), lambda: clickhouse.rows(_RAW_LIST, raw)
        ),
        Question(
            "one broadcast",
            statistic(kinds.STATISTICS_KIND_BROADCASTS, msgid=last),
            lambda: clickhouse.rows(_RAW_ONE, raw),
        ),
        Question(
            "one broadcast by region",
            statistic(kinds.STATISTICS_KIND_BROADCASTS, msgid=last, **by_region),
            lambda: clickhouse.rows(_RAW_VALUES, raw),
        ),
        Question(
            "new users, 7 days",
            statistic(kinds.STATISTICS_KIND_USERS, **week),
            lambda: clickhouse.rows(_RAW_USERS, raw),
        ),
        Question("new users by brand", statistic(kinds.STATISTICS_KIND_USERS, **week, **by_brand)),
        Question(
            "all users by brand",
            statistic(kinds.STATISTICS_KIND_USERS, **week, **by_brand, **everyone),
            lambda: clickhouse.rows(_RAW_ALL_USERS, raw),
        ),
        Question(
            "logins, today",
            statistic(kinds.STATISTICS_KIND_LOGINS, scope=today),
            lambda: clickhouse.rows(_RAW_LOGINS, raw),
            login,
        ),
        Question("logins, 7 days", statistic(kinds.STATISTICS_KIND_LOGINS, **week), before=login),
        Question(
            "logins by brand, today", statistic(kinds.STATISTICS_KIND_LOGINS, scope=today, **by_brand), before=login
        ),
        Question("logins by brand, 7 days", statistic(kinds.STATISTICS_KIND_LOGINS, **week, **by_brand), before=login),
        Question("1000 acknowledgements", page, lambda: clickhouse.rows(_RAW_ACKS, raw)),
    ]


async def first_answers(every: Sequence[Question]) -> list[tuple[Question, dict[str, Any]]]:
    """Send each request once, before anything is repeated or read from the raw facts; times in ms."""
    answers = []
    for asked in every:
        if asked.before:
            await asked.before()
        cpu_s = time.process_time()
        first = await _time_ms(asked.ask)
        cpu_s = time.process_time() - cpu_s
        answers.append((asked, {"what": asked.name, "first": round(first, 1), "first_cpu": round(cpu_s * 1000, 1)}))
    return answers


async def repeated(asked: Question, rounds: int) -> dict[str, Any]:
    """Measure `rounds` further answers, their CPU times, and the raw SQL; times in ms."""
    cpu_s, times = 0.0, []
    for _ in range(rounds):
        if asked.before:
            await asked.before()
        started_s = time.process_time()
        times.append(await _time_ms(asked.ask))
        cpu_s += time.process_time() - started_s
    raw = [await _time_ms(asked.raw) for _ in range(2)] if asked.raw else []
    return {
        "p50": round(float(np.median(times)), 1),
        "max": round(max(times), 1),
        "cpu": round(cpu_s / rounds * 1000, 1),
        "raw": round(min(raw), 1) if raw else None,
    }


async def _time_ms(ask: Ask) -> float:
    started = time.perf_counter()
    await ask()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    main()
