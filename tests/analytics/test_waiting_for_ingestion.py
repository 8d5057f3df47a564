"""Calls that wait for ingestion hold no slot of the queries meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from analytics.ingestion.ingestion import Ingestion
from analytics.questions import QUERIES
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import ListAcksRequest, StatisticsKind, StatisticsRequest, TimeScope
from services.log.sqlite.log import SqliteLog
from testkit.waiting import until_holds
from tests.analytics.records import APP
from tests.analytics.service import running_service

_STATISTICS = StatisticsRequest(appkey=APP, kind=StatisticsKind.STATISTICS_KIND_USERS, scope=TimeScope.TIME_SCOPE_TODAY)


async def test_acknowledgements_are_returned_while_statistics_wait(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_ingested = asyncio.Event()
    waiting: list[str] = []

    async def catch_up(_: Ingestion, topics: Any, appkey: str = "", max_age_ms: int = 0) -> int:
        waiting.append(appkey)
        await is_ingested.wait()
        return 0

    async with running_service(log, clickhouse, tmp_path) as analytics:
        monkeypatch.setattr(Ingestion, "catch_up", catch_up)
        statistics = [asyncio.ensure_future(analytics.Statistics(_STATISTICS)) for _ in range(QUERIES)]
        try:
            await until_holds(lambda: waiting == [APP] * QUERIES)
            async with asyncio.timeout(30):
                page = await analytics.ListAcks(ListAcksRequest(appkey=APP, pos="0", limit=1))
            assert not page.has_more
        finally:
            is_ingested.set()
            answers = await asyncio.gather(*statistics)
    assert all(len(answer.users) == 1 for answer in answers)
