"""A query takes no more than its limits, and ends in the engine when its caller leaves or its deadline passes.

Inserts do not wait for queries.
"""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analytics.store.clickhouse import ClickHouse
from analytics.store.query_limits import QueryLimits
from protos.analytics.v1.analytics_pb2 import StatisticsKind, StatisticsRequest, StatisticsResponse, TimeScope
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub, add_AnalyticsServiceServicer_to_server
from services.errors import DeadlineError, UnavailableError
from services.log.sqlite.log import SqliteLog
from services.net.rpc.channel import connect
from services.net.rpc.server import serve
from testkit.waiting import until
from tests.analytics.records import APP
from tests.analytics.service import running_servicer, value

_LONG = "SELECT sum(sleepEachRow(0.01)) FROM numbers(1000000) SETTINGS max_block_size = 1"
_LONG_INSERT = "INSERT INTO kept SELECT number + sleepEachRow(0.01) FROM numbers(1000000) SETTINGS max_block_size = 1"
_LONG_FILE = "SELECT number, sleepEachRow(0.01) FROM numbers(1000000) SETTINGS max_block_size = 1"
_RUNNING = """
SELECT count() FROM system.processes
WHERE query LIKE '%sleepEachRow%' AND query NOT LIKE '%system.processes%' AND NOT is_cancelled
"""
_STATISTICS = StatisticsRequest(appkey=APP, kind=StatisticsKind.STATISTICS_KIND_USERS, scope=TimeScope.TIME_SCOPE_TODAY)


async def long_answer(clickhouse: ClickHouse, _: Any) -> StatisticsResponse:
    """Answer in place of statistics, with a query that takes long."""
    await clickhouse.rows(_LONG)
    return StatisticsResponse()


async def is_running(clickhouse: ClickHouse) -> bool:
    return bool(await value(clickhouse, _RUNNING))


async def is_idle(clickhouse: ClickHouse) -> bool:
    return not await is_running(clickhouse)


async def read_file(clickhouse: ClickHouse) -> None:
    async with clickhouse.file(_LONG_FILE, {}, "CSVWithNames") as pieces:
        async for _ in pieces:
            pass


async def test_a_query_ends_when_its_caller_leaves(clickhouse: ClickHouse) -> None:
    await clickhouse.command("CREATE TABLE kept (n UInt64) ENGINE = MergeTree ORDER BY n")
    for query in (clickhouse.rows(_LONG), clickhouse.store(_LONG_INSERT), read_file(clickhouse)):
        task = asyncio.ensure_future(query)
        await until(lambda: is_running(clickhouse))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await until(lambda: is_idle(clickhouse))
    assert await value(clickhouse, "SELECT count() FROM kept") == 0


async def test_the_query_of_a_caller_that_left_ends_while_queries_occupy_every_thread(clickhouse: ClickHouse) -> None:
    tasks = [asyncio.create_task(clickhouse.rows(_LONG)) for _ in range(8)]
    observer = clickhouse.beside(clickhouse.database)
    await until(lambda: is_running(observer))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await until(lambda: is_idle(observer))
    await observer.close()
    assert await value(clickhouse, "SELECT 1") == 1


async def test_rows_are_inserted_while_queries_occupy_every_thread_of_theirs(clickhouse: ClickHouse) -> None:
    await clickhouse.command("CREATE TABLE kept (n UInt64) ENGINE = MergeTree ORDER BY n")
    queries = [asyncio.create_task(clickhouse.rows(_LONG)) for _ in range(8)]
    observer = clickhouse.beside(clickhouse.database)
    await until(lambda: is_running(observer))
    try:
        async with asyncio.timeout(30):
            await clickhouse.insert("kept", pa.table({"n": pa.array([7], pa.uint64())}), token="seven")
    finally:
        for query in queries:
            query.cancel()
        await asyncio.wait(queries)
        await observer.close()
    assert await value(clickhouse, "SELECT n FROM kept") == 7


async def test_statistics_whose_caller_leaves_or_whose_deadline_passes(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.server.answer", long_answer)
    async with running_servicer(log, clickhouse, tmp_path) as servicer:
        server = serve([address := f"unix:{tmp_path / 's'}"])
        add_AnalyticsServiceServicer_to_server(servicer, server)
        await server.start()
        channel = connect(address, None)
        stub = AnalyticsServiceStub(channel)

        leaving = asyncio.ensure_future(stub.Statistics(_STATISTICS, timeout=60))
        await until(lambda: is_running(clickhouse))
        leaving.cancel()
        await until(lambda: is_idle(clickhouse))

        with pytest.raises(DeadlineError):
            await stub.Statistics(_STATISTICS, timeout=1)
        await until(lambda: is_idle(clickhouse))
        await channel.close()
        await server.stop(1)


async def test_limits_of_time_memory_and_rows(clickhouse: ClickHouse) -> None:
    with pytest.raises(UnavailableError, match="raise CARILLON_QUERY_SECONDS"):
        await clickhouse.limited(QueryLimits(seconds=0.2)).rows(_LONG)
    limited = clickhouse.limited(QueryLimits(memory_bytes=64 * 1024 * 1024, rows=10))
    with pytest.raises(UnavailableError, match="raise CARILLON_QUERY_MEMORY_MB"):
        await limited.rows("SELECT uniqExact(number) FROM numbers(100000000)")
    with pytest.raises(UnavailableError, match="rows"):
        await limited.rows("SELECT number FROM numbers(11)")
    assert len(await limited.rows("SELECT number FROM numbers(10)")) == 10
    assert len(await clickhouse.rows("SELECT number FROM numbers(11)")) == 11
