"""A process that ingests the log of a directory until it is killed: it prints the sum of its next offsets as they grow.

python -m tests.analytics.ingestion.ingesting_process DIRECTORY
"""

import asyncio
import sys
from pathlib import Path

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from tests.analytics.service import new_ingestion


async def main(directory: Path) -> None:
    clickhouse = ClickHouse(None, directory / "chdb", low_priority=False)
    await clickhouse.open()
    await migrate(clickhouse)
    log = SqliteLog(directory / "log" / "events.db", TOPICS, read_only=True)
    limits = IngestionLimits(flush_s=0.001, max_records=3, max_bytes=1000)
    ingestion = new_ingestion(log, clickhouse, directory, limits)
    task = asyncio.create_task(ingestion.run(asyncio.Event()))
    before = 0
    while not task.done():
        await asyncio.wait([task], timeout=0.005)
        ingested = sum(ingestion._next.values())
        if ingested != before:
            before = ingested
            print(ingested, flush=True)
    task.result()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
