"""Benchmark of analytics: the rate of ingestion, and the times of statistics, acknowledgement pages and audits.

    python -m bench.analytics
    python -m bench.analytics --deliveries 100000000 --devices 10000000 --directory /var/tmp

Outcomes are ingested as in production: records in the event log, read, translated and inserted, each exactly once.
Beside each statistic stands its first answer, before anything is cached, and the same query over the raw
facts, by the shortest SQL that answers it. Before each question for log-ins another device logs in.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from analytics.acks.reader import AckReader
from analytics.audit.push import audit_push
from analytics.ingestion.ingestion import Ingestion, sources
from analytics.statistics.answers import answer
from analytics.statistics.logins import count_days
from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from bench.analytics.history import APP, FIRST_ID, LOGIN, PARTITIONS, History
from protos.analytics.v1.analytics_pb2 import Category, StatisticsKind, StatisticsRequest, TimeScope, UserKind
from services.domain.topics import DELIVERIES, TOPICS
from services.runtime.log.sqlite import SqliteLog
from services.runtime.process.clock import SystemClock
from services.runtime.projection.dead_letters import DeadLetters

ZONE = ZoneInfo("Asia/Shanghai")
Ask = Callable[[], Awaitable[object]]
Part = TypeVar("Part")


class Asked(NamedTuple):
    """A statistic as asked of the service, the same question over the raw rows, and what precedes each repetition."""

    what: str
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deliveries", type=int, default=1_000_000)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10, help="questions of each kind")
    parser.add_argument("--directory", type=Path, help="where log and store are built; 100 bytes a delivery")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carillon-bench-", dir=arguments.directory) as directory:
        result = asyncio.run(measure(arguments, Path(directory)))
    print(json.dumps(result)) if arguments.json else print_result(result)


async def measure(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Measure; rates in outcomes a second, times in ms."""
    history = History(arguments.devices, arguments.deliveries, SystemClock().now_ms())
    log = SqliteLog(directory / "log" / "events.db", TOPICS)
    clickhouse = ClickHouse(None, directory / "chdb")
    await clickhouse.open()
    try:
        await migrate(clickhouse)
        await count_days(clickhouse, ZONE)
        statements = history.statements()
        for sql, parameters in tracked("devices, log-ins and connections", statements, len(statements)):
            await clickhouse.command(sql, parameters)
        ingestion, seconds = await ingested(history, log, clickhouse, directory)
        (count,) = (await clickhouse.rows("SELECT count() FROM deliveries"))[0]
        every = questions(history, clickhouse, ingestion)
        rows = [await measured(asked, arguments.rounds) for asked in tracked("questions", every, len(every))]
        return {
            "deliveries": count,
            "devices": history.devices,
            "broadcasts": history.broadcasts,
            "outcomes_per_s": round(count / seconds),
            "rows": rows,
        }
    finally:
        await clickhouse.close()
        await log.close()


async def ingested(
    history: History, log: SqliteLog, clickhouse: ClickHouse, directory: Path
) -> tuple[Ingestion, float]:
    """Return the ingestion once it has caught up, and the seconds since its start."""
    for new_records in tracked("records", history.new_records(), history.parts):
        for at in range(0, len(new_records), 30):
            await log.append(new_records[at : at + 30])
    dead_letters = DeadLetters(directory / "dead-letters.jsonl", "analytics")
    ingestion = Ingestion(log, clickhouse, directory / "offsets.db", dead_letters, sources(PARTITIONS))
    ends = await log.ends(sources(PARTITIONS))
    started = time.perf_counter()
    running = asyncio.create_task(ingestion.run(asyncio.Event()))
    waiting = asyncio.create_task(ingestion.applied.wait((p, end - 1) for p, end in ends.items() if end))
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    seconds = time.perf_counter() - started
    running.cancel()
    await asyncio.wait([running])
    return ingestion, seconds


def questions(history: History, clickhouse: ClickHouse, ingestion: Ingestion) -> list[Asked]:
    last = FIRST_ID + history.broadcasts - 1
    raw = {"app": APP, "msgid": last}
    numbers = itertools.count()

    def statistic(kind: StatisticsKind.ValueType, **fields: Any) -> Ask:
        request = StatisticsRequest(appkey=APP, kind=kind, **fields)
        question = StatisticsQuery.of(request, history.now_ms, ZONE)
        return lambda: answer(clickhouse, question)

    def page() -> Awaitable[object]:
        ends = ingestion.ends(DELIVERIES)
        now_ms = history.now_ms
        reader = AckReader(
            *(clickhouse, APP, PARTITIONS, ends, ingestion.catch_up), now_ms=now_ms, visible_ms=now_ms - 900_000
        )
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
        Asked(
            "connections, 7 days",
            statistic(kinds.STATISTICS_KIND_CONNECTIONS, **week),
            lambda: clickhouse.rows(_RAW_COUNTS, raw),
        ),
        Asked(
            "connections by region, 7 days",
            statistic(kinds.STATISTICS_KIND_CONNECTIONS, **week, **by_region),
            lambda: clickhouse.rows(_RAW_LEVELS, raw),
        ),
        Asked(
            "list of broadcasts", statistic(kinds.STATISTICS_KIND_BROADCASTS), lambda: clickhouse.rows(_RAW_LIST, raw)
        ),
        Asked(
            "one broadcast",
            statistic(kinds.STATISTICS_KIND_BROADCASTS, msgid=last),
            lambda: clickhouse.rows(_RAW_ONE, raw),
        ),
        Asked(
            "one broadcast by region",
            statistic(kinds.STATISTICS_KIND_BROADCASTS, msgid=last, **by_region),
            lambda: clickhouse.rows(_RAW_VALUES, raw),
        ),
        Asked(
            "new users, 7 days",
            statistic(kinds.STATISTICS_KIND_USERS, **week),
            lambda: clickhouse.rows(_RAW_USERS, raw),
        ),
        Asked("new users by brand", statistic(kinds.STATISTICS_KIND_USERS, **week, **by_brand)),
        Asked(
            "all users by brand",
            statistic(kinds.STATISTICS_KIND_USERS, **week, **by_brand, **everyone),
            lambda: clickhouse.rows(_RAW_ALL_USERS, raw),
        ),
        Asked(
            "logins, today",
            statistic(kinds.STATISTICS_KIND_LOGINS, scope=today),
            lambda: clickhouse.rows(_RAW_LOGINS, raw),
            login,
        ),
        Asked("logins, 7 days", statistic(kinds.STATISTICS_KIND_LOGINS, **week), before=login),
        Asked("logins by brand, today", statistic(kinds.STATISTICS_KIND_LOGINS, scope=today, **by_brand), before=login),
        Asked("logins by brand, 7 days", statistic(kinds.STATISTICS_KIND_LOGINS, **week, **by_brand), before=login),
        Asked("audit of a push", audit),
        Asked("1000 acknowledgements", page, lambda: clickhouse.rows(_RAW_ACKS, raw)),
    ]


async def measured(asked: Asked, rounds: int) -> dict[str, Any]:
    first, *times = [await _time_ms(asked.ask, asked.before) for _ in range(1 + rounds)]
    raw = [await _time_ms(asked.raw) for _ in range(2)] if asked.raw else []
    return {
        "what": asked.what,
        "first": round(first, 1),
        "p50": round(float(np.median(times)), 1),
        "max": round(max(times), 1),
        "raw": round(min(raw), 1) if raw else None,
    }


async def _time_ms(ask: Ask, before: Ask | None = None) -> float:
    if before:
        await before()
    started = time.perf_counter()
    await ask()
    return (time.perf_counter() - started) * 1000


def tracked(what: str, parts: Iterable[Part], count: int) -> Iterable[Part]:
    """Iterate with a progress bar when standard error is a terminal."""
    return track(parts, what, count, console=Console(stderr=True), disable=not sys.stderr.isatty())


def print_result(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['deliveries']:,} deliveries, {result['devices']:,} devices; times in ms")
    for heading in ("", "first", "p50", "max", "raw facts"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in result["rows"]:
        table.add_row(row["what"], str(row["first"]), str(row["p50"]), str(row["max"]), str(row["raw"] or ""))
    console = Console()
    console.print(table)
    console.print(f"ingested: {result['outcomes_per_s']:,} outcomes/s; {result['broadcasts']} broadcasts")


if __name__ == "__main__":
    main()
