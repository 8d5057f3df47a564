"""A store that dropped rows past their retention still equals the log.

The store has a path of its own, and a process has one chdb path at a time: no test here uses the shared store.
"""

from pathlib import Path

import pytest

from analytics.ingestion.ingestion import sources
from analytics.projection import connect
from analytics.replay import verify
from services.log.sqlite.log import SqliteLog
from services.replica.replay import ReplaySource
from tests.analytics.records import PARTITIONS
from tests.analytics.service import value
from tests.analytics.store.test_retention import HISTORY_DAYS, drop_old_rows, history
from tests.analytics.test_main import settings_in


@pytest.mark.long
async def test_a_store_that_dropped_old_rows_is_verified(log: SqliteLog, tmp_path: Path) -> None:
    """The log still has the dropped records, and so has the store rebuilt from it."""
    days = str(HISTORY_DAYS)
    settings = settings_in(tmp_path, history_days=days, content_days=days, refusal_days="7")
    await log.append(history())
    ends = await log.ends(sources(PARTITIONS))
    assert (await verify(settings, ReplaySource(log, ends))).equal
    clickhouse = connect(settings)
    await clickhouse.open()
    assert await value(clickhouse, "SELECT countIf(title != '' OR text != '') FROM pushes FINAL") == 4
    await drop_old_rows(clickhouse, settings.retention_days())
    assert await value(clickhouse, "SELECT countIf(title != '' OR text != '') FROM pushes FINAL") == 2
    assert await value(clickhouse, "SELECT count() FROM deliveries") == 3
    assert await value(clickhouse, "SELECT count() FROM push_channels") == 1
    await clickhouse.close()

    assert (await verify(settings, ReplaySource(log, ends))).equal
