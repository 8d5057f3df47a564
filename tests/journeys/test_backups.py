"""The backups and restores of docs/operators/backup.md: under traffic, and to another place."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.gateway.v1.sessions_pb2 import SessionBatch, SessionFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import SESSIONS, TOPICS, archived_partitions
from services.log.archive.archiver import DAY_MS, Archiver
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock, SystemClock
from services.replica.sqlite_store import stored_offsets
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.kafka.broker import kafka
from testkit.printed_commands import run
from testkit.waiting import until, until_holds
from tests.journeys.stopped_service import StoppedService, write_history
from tests.journeys.test_push import audited, message, shown

BEFORE = 20
PACE_S = 0.05


@contextlib.asynccontextmanager
async def traffic(installation: Installation, app: AppCredentials) -> AsyncIterator[list[str]]:
    """Send broadcasts all the while; yield the growing list of those that were answered with 0."""
    answered: list[str] = []

    async def send() -> None:
        server, number = AppServer(installation.v2_url), 0
        while True:
            number += 1
            if (await server.push(message(app, 1, f"push {number}"), app.secret_key))["result"] == 0:
                answered.append(f"push {number}")
            await asyncio.sleep(PACE_S)

    sending = asyncio.create_task(send())
    try:
        yield answered
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending


async def registered(installation: Installation, app: AppCredentials) -> VirtualDevice:
    """Return a device that has registered and is gone again."""
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    await device.close()
    return device


async def check_restored(
    restored: Installation, app: AppCredentials, known: VirtualDevice, acknowledged: list[str], lost: VirtualDevice
) -> None:
    """The known device keeps token and key and gets every acknowledged push; the later one is registered anew."""
    device = VirtualDevice(restored.gateway_url, app.appkey, token=known.token, key=known.key)
    await device.connect()
    assert (device.token, device.key) == (known.token, known.key)
    missing = set(acknowledged)
    while missing:
        missing.discard((await shown(device))["content"])
    fresh = VirtualDevice(restored.gateway_url, app.appkey)
    await fresh.connect()
    again = VirtualDevice(restored.gateway_url, app.appkey, token=lost.token, key=lost.key)
    await again.connect()
    assert again.token == lost.token
    assert again.key != lost.key
    server = AppServer(restored.v2_url)
    answer = await server.push(message(app, 1, "to all"), app.secret_key)
    assert answer["result"] == 0, answer
    for each in (device, fresh, again):
        while (await shown(each))["content"] != "to all":
            pass
        await each.close()
    await server.close()


@pytest.mark.long
@pytest.mark.parametrize("carillon", ["embedded"], indirect=True)
async def test_a_data_directory_is_backed_up_and_restored(
    carillon: Installation, app: AppCredentials, tmp_path: Path
) -> None:
    known = await registered(carillon, app)
    async with traffic(carillon, app) as answered:
        await until_holds(lambda: len(answered) >= BEFORE)
        acknowledged = [*answered]
        await asyncio.to_thread(
            run, "Back up a data directory", carillon, {"/backups/monday": tmp_path / "backups/monday"}
        )
        assert len(answered) > BEFORE
        lost = await registered(carillon, app)
    restored = Installation(tmp_path / "restored", None)
    paths = {
        "/srv/carillon": restored.data,
        "/safe/master.key": carillon.data / "master.key",
        "/backups/monday": tmp_path / "backups/monday",
    }
    with contextlib.closing(restored):
        await asyncio.to_thread(run, "Restore a data directory", restored, paths)
        await asyncio.to_thread(restored.start)
        await check_restored(restored, app, known, acknowledged, lost)
        await asyncio.to_thread(restored.stop)


async def archive_all(data: Path) -> None:
    """Move every record that may go there to the archive: all but the last one of each partition."""
    partitions = archived_partitions(8)
    live = SqliteLog(data / "log" / "events.db", TOPICS)
    log = ArchivedLog(live, ArchiveDirectory(data / "log" / "archive"))
    clock = ManualClock(SystemClock().now_ms() + 50 * DAY_MS)
    await Archiver(log, clock, partitions, 35 * DAY_MS).archive_old()
    begins, ends = await live.begins(partitions), await live.ends(partitions)
    assert sum(begins.values()) > 20
    assert all(begins[partition] == max(0, end - 1) for partition, end in ends.items())
    await log.close()


async def append_old_sessions(data: Path) -> Partition:
    """Append two records that are 40 days old to a partition that has none; return the partition."""
    log = SqliteLog(data / "log" / "events.db", TOPICS)
    ends = await log.ends(Partition(SESSIONS.name, number) for number in range(8))
    partition = next(partition for partition, end in ends.items() if end == 0)
    fact = SessionFact(meta=Meta(time_ms=SystemClock().now_ms() - 40 * DAY_MS), batch=SessionBatch())
    await log.append([NewRecord(*partition, b"", fact.SerializeToString())] * 2)
    await log.close()
    return partition


async def is_ingested(data: Path, partition: Partition) -> bool:
    """Return whether analytics has the two records of the partition."""
    return stored_offsets(data / "analytics" / "offsets.db").get(partition) == 2


async def is_trimmed(data: Path, partition: Partition) -> bool:
    log = SqliteLog(data / "log" / "events.db", TOPICS, read_only=True)
    try:
        return (await log.begins([partition]))[partition] == 1
    finally:
        await log.close()


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_replays_audits_and_backups_read_on_in_the_archive(tmp_path: Path) -> None:
    """The service, whose states are rebuilt from a backup's archive, works on and explains the pushes of before."""
    first, restored = Installation(tmp_path / "data", None), Installation(tmp_path / "restored", None)
    service = StoppedService(first)
    try:
        await asyncio.to_thread(first.start)
        await write_history(service, 0)
        server = AppServer(first.v2_url)
        sent = await server.push(message(service.app, 1, "to be archived"), service.app.secret_key)
        await server.close()
        before = await audited(first, sent["id"], "command")
        await asyncio.to_thread(first.stop)
        digests = await asyncio.to_thread(service.states)
        await archive_all(first.data)
        assert await asyncio.to_thread(service.states) == digests

        await asyncio.to_thread(first.carillon, "backup", str(tmp_path / "monday"))
        restored.data.mkdir(exist_ok=True)
        shutil.copy2(first.data / "master.key", restored.data)
        await asyncio.to_thread(restored.carillon, "restore", str(tmp_path / "monday"), "--lost-devices", "0")
        old = await append_old_sessions(restored.data)
        await asyncio.to_thread(restored.start)
        told = await audited(restored, sent["id"], "command")
        assert told["timeline"][0] == before["timeline"][0]
        await until(lambda: is_ingested(restored.data, old))
        await asyncio.to_thread(restored.stop)  # the archiver looks at each start, and leaves what analytics lacks
        await asyncio.to_thread(restored.start)
        await until(lambda: is_trimmed(restored.data, old))
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


@pytest.mark.long
@pytest.mark.kafka
async def test_a_broker_is_backed_up_and_restored(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        broker = await asyncio.to_thread(stack.enter_context, kafka(_made(tmp_path / "broker")))
        installation = stack.enter_context(contextlib.closing(Installation(tmp_path / "data", broker.bootstrap)))
        await asyncio.to_thread(installation.start)
        app = installation.create_app()
        known = await registered(installation, app)
        async with traffic(installation, app) as answered:
            await until_holds(lambda: len(answered) >= BEFORE)
            await asyncio.to_thread(broker.stop)
            acknowledged = [*answered]
            paths = {"/var/lib/kafka/data": broker.data, "/backups/monday": tmp_path / "backups/monday"}
            await asyncio.to_thread(run, "Copy the directory of a stopped broker", installation, paths)
            await asyncio.to_thread(broker.start)
            await until_holds(lambda: len(answered) > len(acknowledged) + BEFORE)
        lost = await registered(installation, app)
        installation.close()
        await asyncio.to_thread(broker.stop)

        other = await asyncio.to_thread(stack.enter_context, kafka(_made(tmp_path / "other-broker")))
        await asyncio.to_thread(other.stop)
        paths["/var/lib/kafka/data"] = other.data
        await asyncio.to_thread(run, "Restore the directory of a broker", installation, paths)
        await asyncio.to_thread(other.start)
        restored = stack.enter_context(contextlib.closing(Installation(tmp_path / "restored", other.bootstrap)))
        _made(restored.data).joinpath("master.key").write_bytes((installation.data / "master.key").read_bytes())
        await asyncio.to_thread(run, "Before the roles start", restored, {})
        await asyncio.to_thread(restored.start)
        await check_restored(restored, app, known, acknowledged, lost)
        await asyncio.to_thread(restored.stop)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
