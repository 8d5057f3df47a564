"""The end of the archive: old records go for good, and states are verified and rebuilt without them."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from carillon.roles import REPLAYABLE
from services.domain.topics import TOPICS, archived_partitions
from services.log.archive.archiver import DAY_MS
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog
from services.log.port import Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock, SystemClock
from services.replica.archive_end import ArchiveEnd, StateBases
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppServer
from testkit.installation.processes import Installation
from tests.journeys.stopped_service import StoppedService, write_history
from tests.journeys.test_backups import archive_all
from tests.journeys.test_push import message, shown

ROLES = [role for role in REPLAYABLE if role != "analytics"]
PARTITIONS = archived_partitions(8)
DAYS = 60


async def end_archive(data: Path, later_days: int) -> dict[Partition, int]:
    """Do what `carillon up` does every hour, so many days from now; return where the archive begins then."""
    archive = ArchiveDirectory(data / "log" / "archive")
    log = ArchivedLog(SqliteLog(data / "log" / "events.db", TOPICS), archive)
    bases = [StateBases(archive, role, data / role, TOPICS, log.identity) for role in ROLES]
    clock = ManualClock(SystemClock().now_ms() + later_days * DAY_MS)
    days = {partition.topic: DAYS for partition in PARTITIONS}
    await ArchiveEnd(archive, log, clock, PARTITIONS, bases, days).remove_old()
    await log.close()
    return dict(archive.begin().offsets)


def topics(partitions: Sequence[Partition]) -> set[str]:
    return {partition.topic for partition in partitions}


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_states_are_verified_rebuilt_and_restored_without_the_oldest_records(tmp_path: Path) -> None:
    first, restored = Installation(tmp_path / "data", None), Installation(tmp_path / "restored", None)
    service = StoppedService(first)
    try:
        await asyncio.to_thread(first.start)
        await write_history(service, 0)
        await asyncio.to_thread(first.stop)
        await archive_all(first.data)
        assert not await end_archive(first.data, 0), "the bases are saved, and nothing is old enough"
        archive = ArchiveDirectory(first.data / "log" / "archive")
        segments = {partition: archive.names(partition) for partition in PARTITIONS}
        await asyncio.to_thread(first.start)
        await write_history(service, 1)
        await asyncio.to_thread(first.stop)
        digests = await asyncio.to_thread(service.states)
        await archive_all(first.data)
        begin = await end_archive(first.data, DAYS + 1)
        assert topics([*begin]) >= topics([each for each, names in segments.items() if names])
        for partition, names in segments.items():
            assert not set(names) & set(archive.names(partition)), partition

        verified = await asyncio.to_thread(service.states)
        assert {role: verified[role] for role in ROLES} == {role: digests[role] for role in ROLES}
        for role in REPLAYABLE:
            told = await asyncio.to_thread(first.carillon, "replay", role)
            lost = "rows that were made of them are not in it" if role == "analytics" else "it begins with a copy"
            assert f"were removed from the archive: {lost}." in told
        assert await asyncio.to_thread(service.states) == verified
        until = ("--until", "2026-01-01", "--into", str(tmp_path / "past"))
        with pytest.raises(AssertionError, match="so no state can be built as of an earlier moment"):
            await asyncio.to_thread(first.carillon, "replay", "delivery", *until)

        await asyncio.to_thread(first.carillon, "backup", str(tmp_path / "monday"))
        restored.data.mkdir(exist_ok=True)
        shutil.copy2(first.data / "master.key", restored.data)
        await asyncio.to_thread(restored.carillon, "restore", str(tmp_path / "monday"), "--lost-devices", "0")
        await asyncio.to_thread(restored.start)
        device = VirtualDevice(restored.gateway_url, service.app.appkey)
        await device.connect()
        server = AppServer(restored.v2_url)
        to_it = message(service.app, 5, "after it", token={"android": device.token})
        assert (await server.push(to_it, service.app.secret_key))["result"] == 0
        assert (await shown(device))["content"] == "after it"
        await device.close()
        await server.close()
        await asyncio.to_thread(restored.stop)
        await asyncio.to_thread(StoppedService(restored).states)
    finally:
        first.close()
        restored.close()
