"""The backups and restores of docs/operators/backup.md: under traffic, and to another place."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carillon_device import DeviceEndedError
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.kafka.broker import kafka
from testkit.printed_commands import run
from testkit.waiting import until_holds
from tests.journeys.test_push import message, shown

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
    """The known device keeps its token and gets every acknowledged push; the key of the later device is refused."""
    device = VirtualDevice(restored.gateway_url, app.appkey, token=known.token, key=known.key)
    await device.connect()
    assert (device.token, device.key) == (known.token, known.key)
    missing = set(acknowledged)
    while missing:
        missing.discard((await shown(device))["content"])
    fresh = VirtualDevice(restored.gateway_url, app.appkey)
    await fresh.connect()
    with pytest.raises(DeviceEndedError):
        await VirtualDevice(restored.gateway_url, app.appkey, token=lost.token, key=lost.key).connect()
    server = AppServer(restored.v2_url)
    answer = await server.push(message(app, 1, "to all"), app.secret_key)
    assert answer["result"] == 0, answer
    for each in (device, fresh):
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
