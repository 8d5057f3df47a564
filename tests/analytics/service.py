"""The ingestion and the servicer of analytics, running inside a test."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.ingestion.ingestion import Ingestion, sources
from analytics.server import AnalyticsServicer
from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub, add_AnalyticsServiceServicer_to_server
from services.log.port import Log, NewRecord
from services.net.rpc.local import LocalServer
from services.process.clock import Clock, ManualClock
from services.replica.dead_letters import DeadLetters

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

from tests.analytics.records import PARTITIONS, T0

FAST = IngestionLimits(flush_s=0.01, catch_up_s=20, stop_s=2)


def new_ingestion(
    log: Log, clickhouse: ClickHouse, directory: Path, pace: IngestionLimits = FAST, shard: int = 0, shards: int = 1
) -> Ingestion:
    dead_letters = DeadLetters(directory / "dead-letters.jsonl", "analytics")
    reads = sources(PARTITIONS, shard, shards)
    instance = f"{shard}/{shards}"
    return Ingestion(log, clickhouse, directory / "offsets.db", dead_letters, reads, instance=instance, limits=pace)


@asynccontextmanager
async def running_ingestion(ingestion: Ingestion) -> AsyncIterator[Ingestion]:
    """Run the ingestion and yield it once it is ready. Its failure is raised at the end."""
    ready = asyncio.Event()
    task = asyncio.create_task(ingestion.run(ready))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=30)
        if task.done():
            task.result()
        assert ready.is_set()
        yield ingestion
    finally:
        waiting.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def running_service(
    log: Log,
    clickhouse: ClickHouse,
    directory: Path,
    clock: Clock | None = None,
    zone: str = "Asia/Shanghai",
    ack_delay_ms: int = 900_000,
) -> AsyncIterator["AnalyticsServiceAsyncStub"]:
    """Run the ingestion and the servicer; yield a stub of the service."""
    async with running_servicer(log, clickhouse, directory, clock, zone, ack_delay_ms) as servicer:
        server = LocalServer()
        add_AnalyticsServiceServicer_to_server(servicer, server)  # type: ignore[arg-type]
        yield AnalyticsServiceStub(server.channel())


@asynccontextmanager
async def running_servicer(
    log: Log,
    clickhouse: ClickHouse,
    directory: Path,
    clock: Clock | None = None,
    zone: str = "Asia/Shanghai",
    ack_delay_ms: int = 900_000,
) -> AsyncIterator[AnalyticsServicer]:
    """Run the ingestion; yield the servicer."""
    await count_days(clickhouse, ZoneInfo(zone))
    async with running_ingestion(new_ingestion(log, clickhouse, directory)) as ingestion:
        yield AnalyticsServicer(
            *(ingestion, clickhouse, clock or ManualClock(T0), ZoneInfo(zone)),
            partitions=PARTITIONS,
            ack_delay_ms=ack_delay_ms,
        )


async def ingest(log: Log, clickhouse: ClickHouse, directory: Path, new_records: Sequence[NewRecord]) -> None:
    """Append the records and return when they are in the store."""
    await log.append(new_records)
    async with running_ingestion(new_ingestion(log, clickhouse, directory)) as ingestion:
        assert await ingestion.catch_up() == 0


async def value(clickhouse: ClickHouse, sql: str) -> Any:
    return (await clickhouse.rows(sql))[0][0]
