"""Several instances of analytics fill one store, and each answers for all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.ingestion.ingestion import Ingestion, sources
from analytics.server import AnalyticsServicer
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from protos.analytics.v1.analytics_pb2 import (
    AuditPushRequest,
    CatchUpRequest,
    CatchUpResponse,
    StatisticsKind,
    StatisticsRequest,
    TimeScope,
)
from protos.analytics.v1.analytics_pb2_grpc import (
    AnalyticsServiceServicer,
    AnalyticsServiceStub,
    add_AnalyticsServiceServicer_to_server,
)
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.domain.topics import PUSHES, TOPICS
from services.errors import ConflictError, UnavailableError
from services.log.sqlite.log import SqliteLog
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context
from services.process.clock import ManualClock
from services.replica.dead_letters import DeadLetters
from tests.analytics.records import APP, PARTITIONS, T0, app_outcomes, outcomes, send, started
from tests.analytics.service import FAST, new_ingestion, running_ingestion, value

SHARDS = 2
UNHURRIED = IngestionLimits(flush_s=3600, catch_up_s=20, stop_s=2)
RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


def running_service(servicer: AnalyticsServiceServicer) -> Channel:
    server = LocalServer()
    add_AnalyticsServiceServicer_to_server(servicer, server)  # type: ignore[arg-type]
    return server.channel()


def servicer(ingestion: Ingestion, clickhouse: ClickHouse, *others: Channel) -> AnalyticsServicer:
    return AnalyticsServicer(
        *(ingestion, clickhouse, ManualClock(T0), ZoneInfo("UTC")),
        partitions=PARTITIONS,
        ack_delay_ms=0,
        others=[AnalyticsServiceStub(other) for other in others],
    )


@pytest.fixture
async def ingestions(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> AsyncIterator[list[Ingestion]]:
    """Two ingestions, each with half of the partitions, that ingest only on request."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running_ingestion(
                    Ingestion(
                        *(
                            log,
                            clickhouse,
                            tmp_path / f"offsets-{shard}.db",
                            DeadLetters(tmp_path / "dead-letters", "analytics"),
                        ),
                        sources(PARTITIONS, shard, SHARDS),
                        instance=f"{shard}/{SHARDS}",
                        stores_commands=shard == 0,
                        limits=UNHURRIED,
                    )
                )
            )
            for shard in range(SHARDS)
        ]


async def test_an_answer_includes_records_of_other_instances(
    log: SqliteLog, clickhouse: ClickHouse, ingestions: list[Ingestion]
) -> None:
    other = running_service(servicer(ingestions[1], clickhouse))
    stub = AnalyticsServiceStub(running_service(servicer(ingestions[0], clickhouse, other)))
    await log.append([send(1), *(started(1, partition, [1, 2, 3]) for partition in range(PARTITIONS))])
    async with asyncio.timeout(60):
        await stub.AuditPush(AuditPushRequest(msgid=1))
        await log.append([outcomes(partition, app_outcomes(1, [1, 2], RECEIVED)) for partition in range(PARTITIONS)])
        audit = await stub.AuditPush(AuditPushRequest(msgid=1))
    assert (audit.audience_count, audit.records_behind) == (3 * PARTITIONS, 0)
    assert {entry.event: entry.count for entry in audit.timeline}["received"] == 2 * PARTITIONS
    assert await value(clickhouse, "SELECT count() FROM pushes") == 1
    assert await value(clickhouse, "SELECT count() FROM acks") == 0, "receipts of a broadcast are no acknowledgements"


class LaggingInstance(AnalyticsServiceServicer):
    async def CatchUp(self, request: CatchUpRequest, context: Context) -> CatchUpResponse:
        return CatchUpResponse(records_behind=7)


async def test_an_answer_reports_records_missing_at_other_instances(
    log: SqliteLog, clickhouse: ClickHouse, ingestions: list[Ingestion]
) -> None:
    other = running_service(LaggingInstance())  # type: ignore[abstract]
    stub = AnalyticsServiceStub(running_service(servicer(ingestions[0], clickhouse, other)))
    await log.append([send(1)])
    assert (await stub.AuditPush(AuditPushRequest(msgid=1, allow_behind=True))).records_behind == 7
    for refused in (AuditPushRequest(msgid=1), AuditPushRequest(msgid=2, allow_behind=True)):
        with pytest.raises(UnavailableError, match="7 records behind"):
            await stub.AuditPush(refused)
    with pytest.raises(UnavailableError, match="7 records behind"):
        await stub.Statistics(
            StatisticsRequest(appkey=APP, kind=StatisticsKind.STATISTICS_KIND_USERS, scope=TimeScope.TIME_SCOPE_TODAY)
        )


async def test_a_store_of_another_log_is_refused_until_it_is_emptied(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """One instance empties the store; each finds out for itself, and ingests the other log from its beginning."""
    directories = [tmp_path / str(shard) for shard in range(SHARDS)]

    async def ingest(source: SqliteLog, shard: int) -> None:
        ingestion = new_ingestion(source, clickhouse, directories[shard], FAST, shard, SHARDS)
        async with running_ingestion(ingestion):
            assert {*ingestion.ends(PUSHES).values()} == {1}

    another = SqliteLog(tmp_path / "another.db", TOPICS)
    try:
        for one in (log, another):
            await one.append([started(1, partition, [1]) for partition in range(PARTITIONS)])
        for shard in range(SHARDS):
            await ingest(log, shard)
        for shard in range(SHARDS):
            with pytest.raises(ConflictError, match="the state of analytics belongs to another log"):
                await ingest(another, shard)
        await clickhouse.drop()
        await migrate(clickhouse)
        for shard in range(SHARDS):
            await ingest(another, shard)
    finally:
        await another.close()
