"""The fixture of all tests of delivery."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from testkit.delivery.message_ids import SoleWriterIds
from testkit.delivery.records import PARTITIONS, START_MS
from testkit.delivery.role import DeliveryHarness
from testkit.delivery.settings import settings_without_vendors
from testkit.faults.crashing_log import KillingLog


@pytest.fixture
async def delivery(tmp_path: Path) -> AsyncIterator[DeliveryHarness]:
    """Delivery on a fresh log, not running yet; iOS pushes go to an address where nothing listens."""
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    clock = ManualClock(START_MS)
    settings = settings_without_vendors(data_dir=str(tmp_path), partitions=PARTITIONS, snapshot_s=1_000_000)
    yield DeliveryHarness(tmp_path, KillingLog(log), clock, SoleWriterIds(clock), settings)
    await log.close()
