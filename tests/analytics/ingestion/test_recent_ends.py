"""Requests that allow older records wait for the batch being gathered; none is written for one request alone."""

from pathlib import Path

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.store.clickhouse import ClickHouse
from services.domain.topics import PUSH_COMMANDS
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import send
from tests.analytics.service import new_ingestion, running_ingestion, value

LONG_MS = 600_000
NEVER = IngestionLimits(flush_s=3600, catch_up_s=20, stop_s=1)


async def test_catching_up_with_an_allowed_age_leaves_newer_records_for_later(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    async def stored() -> int:
        return int(await value(clickhouse, "SELECT count() FROM pushes"))

    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path, NEVER)) as ingestion:
        await log.append([send(1000)])
        assert await ingestion.catch_up(max_age_ms=LONG_MS) == 0
        assert await stored() == 1
        await log.append([send(2000)])
        for topics in ([PUSH_COMMANDS], []):
            assert await ingestion.catch_up(topics, max_age_ms=LONG_MS) == 0
            assert await stored() == 1
        assert await ingestion.catch_up(max_age_ms=1) == 0
        assert await stored() == 2
        await log.append([send(3000)])
        assert await ingestion.catch_up([PUSH_COMMANDS]) == 0
        assert await stored() == 3
