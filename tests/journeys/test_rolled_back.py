"""A log that goes back: no device shows another one's push, devices recover by themselves, and messages help."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from services.domain.master_key import MasterKey
from services.domain.topics import device_key
from services.log.topics import partition_of
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.kafka.broker import kafka
from testkit.waiting import until_holds
from tests.journeys.test_push import message, shown

PARTITIONS = 8
STATES = ("registry", "targeting", "scheduling", "delivery", "analytics")


def place(installation: Installation, app: AppCredentials, device: VirtualDevice) -> tuple[int, int]:
    """Return the partition of a device and the number that its key proves."""
    keys, token = MasterKey.load(installation.data / "master.key"), str(device.token)
    number = keys.device_number(app.appkey, token, str(device.key))
    assert number is not None
    return partition_of(device_key(app.appkey, token), PARTITIONS), number


async def registered(installation: Installation, app: AppCredentials) -> VirtualDevice:
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    await device.close()
    return device


async def neighbours(
    installation: Installation, app: AppCredentials, wanted: tuple[int, int]
) -> tuple[VirtualDevice, tuple[int, int]]:
    """Register devices until one is in this partition; return it and its place."""
    while True:
        device = await registered(installation, app)
        if (found := place(installation, app, device))[0] == wanted[0]:
            return device, found


async def check_apart(
    installation: Installation, app: AppCredentials, carol: tuple[str | None, str | None], dave: VirtualDevice
) -> None:
    """Each of two devices with stored keys shows the push to its own token and no other, though dave comes last."""
    server = AppServer(installation.v2_url)
    token, key = carol
    again = VirtualDevice(installation.gateway_url, app.appkey, token=token, key=key)
    await again.connect()
    assert (await again.events.get())["new"] is True, "the app sets alias and tags again"
    assert (again.token, again.key != key) == (token, True)
    for name, device in (("dave", dave), ("carol", again)):
        body = message(app, 5, f"to {name}", token={"android": device.token})
        assert (await server.push(body, app.secret_key))["result"] == 0
    assert (await shown(again))["content"] == "to carol"
    late = VirtualDevice(installation.gateway_url, app.appkey, token=dave.token, key=dave.key)
    await late.connect()
    assert (await shown(late))["content"] == "to dave"
    for each in (again, late):
        await each.close()
    await server.close()


@pytest.mark.long
async def test_a_data_directory_that_was_rolled_back_sends_no_push_to_another_device(tmp_path: Path) -> None:
    """As by a snapshot of the machine: log and states go back together, and the only witness is a device."""
    installation = Installation(tmp_path / "data", None)
    with contextlib.closing(installation):
        await asyncio.to_thread(installation.start)
        app = installation.create_app()
        await registered(installation, app)
        await asyncio.to_thread(installation.kill)
        shutil.copytree(installation.data, tmp_path / "snapshot", ignore=shutil.ignore_patterns("*.sock"))
        await asyncio.to_thread(installation.start)
        carol, erin = await registered(installation, app), await registered(installation, app)
        lost = place(installation, app, carol)
        await asyncio.to_thread(installation.kill)
        shutil.rmtree(installation.data)
        shutil.copytree(tmp_path / "snapshot", installation.data)
        await asyncio.to_thread(installation.start)
        dave, found = await neighbours(installation, app, lost)
        assert found == lost, "the directory knows nothing of carol"
        await check_apart(installation, app, (carol.token, carol.key), dave)
        await registered_again(installation, app, erin)
        assert "the event log has gone back" in installation.output().read_text()
        await asyncio.to_thread(installation.stop)
        await asyncio.to_thread(installation.carillon, "restore", "--lost-devices", "100")
        await asyncio.to_thread(installation.start)
        _, after = await neighbours(installation, app, lost)
        assert after[1] > 12, "the operator's reservation"
        await asyncio.to_thread(installation.stop)


async def registered_again(installation: Installation, app: AppCredentials, lost: VirtualDevice) -> None:
    device = VirtualDevice(installation.gateway_url, app.appkey, token=lost.token, key=lost.key)
    await device.connect()
    assert (device.token, device.key != lost.key) == (lost.token, True)
    await device.close()


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(1200)
async def test_a_broker_that_lost_its_tail_sends_no_push_to_another_device(tmp_path: Path) -> None:
    """The processes run on while the broker is killed and comes back older, and carol stays connected."""
    with contextlib.ExitStack() as stack:
        (tmp_path / "broker").mkdir()
        broker = await asyncio.to_thread(stack.enter_context, kafka(tmp_path / "broker"))
        installation = stack.enter_context(contextlib.closing(Installation(tmp_path / "data", broker.bootstrap)))
        installation.supervised = True
        await asyncio.to_thread(installation.start)
        app = installation.create_app()
        await registered(installation, app)
        await asyncio.to_thread(broker.stop)
        shutil.copytree(broker.data, tmp_path / "older")
        await asyncio.to_thread(broker.start)
        carol = VirtualDevice(installation.gateway_url, app.appkey)
        await carol.connect(seconds=120)
        lost = place(installation, app, carol)
        before = (carol.token, carol.key)
        await asyncio.to_thread(broker.kill)
        shutil.rmtree(broker.data)
        shutil.copytree(tmp_path / "older", broker.data)
        await asyncio.to_thread(broker.start)
        # An operator who rebuilds the states and forgets the reservation gives out no number twice either.
        await until_holds(lambda: installation.has_ended("registry"), 120)
        await asyncio.to_thread(installation.restart_ended, "registry")
        await until_holds(lambda: installation.has_ended("registry"), 120)
        assert "carillon restore --lost-devices N" in installation.output("registry").read_text()
        for name in [name for name in installation.names if name != "gateway"]:
            if not installation.has_ended(name):
                await asyncio.to_thread(installation.kill, name)
        for role in STATES:
            await asyncio.to_thread(installation.carillon, "replay", role)
        await asyncio.to_thread(installation.restart_ended, "gateway")
        await asyncio.to_thread(installation.start, *(name for name in installation.names if name != "gateway"))
        dave, found = await neighbours(installation, app, lost)
        assert found[1] > lost[1]
        await until_holds(lambda: carol.key != before[1], 120)
        assert carol.token == before[0]
        await carol.close()
        await check_apart(installation, app, before, dave)
