"""`carillon up` is stopped, started again and killed: no accepted push is lost or shown twice."""

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.runtime.process.data_directory import lock_directory
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.waiting import until_holds
from tests.journeys.test_push import message, shown

DEVICES = 4
PACE_S = 0.25
KILLS = 3


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path / "data", None)
    installation.start()
    yield installation
    installation.close()


async def test_a_second_start_has_the_state_of_the_first(installation: Installation) -> None:
    app = installation.create_app()
    server = AppServer(installation.v2_url)
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    await device.request({"type": "set_alias", "alias": "alice"})
    await device.request({"type": "add_stags", "stags": ["news"]})
    await device.close()
    before = await server.push(message(app, 4, "kept while it was down", alias="alice"), app.secret_key)
    option = {"timed": 2, "send_time_interval": 1}
    timed = await server.push(message(app, 6, "due while it was down", option, stag=[["news"]]), app.secret_key)
    analytics = installation.analytics_process()
    analytics.send_signal(signal.SIGINT)
    installation.stop(number=signal.SIGINT)
    assert not analytics.is_running()
    installation.start()
    assert app.appkey in installation.carillon("app", "list", "--json")
    back = VirtualDevice(installation.gateway_url, app.appkey, token=device.token, key=device.key)
    await back.connect()
    after = await server.push(message(app, 6, "after the start", stag=[["news"]]), app.secret_key)
    try:
        contents = {(await shown(back))["content"] for _ in range(3)}
    finally:
        await back.close()
        await server.close()
    assert contents == {"kept while it was down", "due while it was down", "after the start"}
    assert [answer["result"] for answer in (before, timed, after)] == [0, 0, 0]
    for role in ("registry", "targeting", "scheduling", "delivery"):
        assert json.loads(installation.carillon("replay", role, "--verify", "--json"))["equal"], role
    await asyncio.to_thread(installation.kill)
    with lock_directory(installation.data), lock_directory(installation.data / "analytics", "running.lock"):
        pass  # Nobody uses the directory any more.


@pytest.mark.long
async def test_kill_9_while_pushes_are_sent(installation: Installation) -> None:
    """Every push answered with 0 is shown on its device exactly once."""
    app = installation.create_app()
    devices = [VirtualDevice(installation.gateway_url, app.appkey) for _ in range(DEVICES)]
    for device in devices:
        await device.connect()
    answered: list[tuple[int, str]] = []
    sending = asyncio.create_task(_send_continuously(installation, app, devices, answered))

    async def until_more_are_answered() -> None:
        enough = len(answered) + 60
        await until_holds(lambda: len(answered) >= enough or sending.done())

    for _ in range(KILLS):
        await until_more_are_answered()
        await asyncio.to_thread(installation.kill)
        await asyncio.to_thread(installation.start)
    await until_more_are_answered()
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending
    expected = [{content for number, content in answered if number == index} for index in range(DEVICES)]
    for device, contents in zip(devices, expected, strict=True):
        counts = await _shown_at_least(device, contents)
        assert not {content: count for content, count in counts.items() if count > 1}
        await device.close()
    assert len(answered) >= 60 * (KILLS + 1)
    installation.stop()


async def _send_continuously(
    installation: Installation, app: AppCredentials, devices: list[VirtualDevice], answered: list[tuple[int, str]]
) -> None:
    """Send unicasts and broadcasts, several at a time; a request without an answer counts as not accepted.

    A device that is away keeps 100 unicasts. It may take seconds to connect again, so it is sent eight a second.
    """
    server = AppServer(installation.v2_url)
    serial = 0

    async def one(number: int) -> None:
        index = number % DEVICES
        token = devices[index].token
        everyone = number % 10 == 0
        content = f"push {number}"
        body = message(app, 1, content) if everyone else message(app, 5, content, token={"android": token})
        try:
            answer = await server.push(body, app.secret_key)
        except httpx.TransportError:
            await asyncio.sleep(0.02)
            return
        if answer["result"] == 0:
            answered.extend((each, content) for each in (range(DEVICES) if everyone else [index]))

    while True:
        await asyncio.gather(*(one(serial + offset) for offset in range(8)), asyncio.sleep(PACE_S))
        serial += 8


async def _shown_at_least(device: VirtualDevice, contents: set[str]) -> Counter[str]:
    """Return the count of each content shown, once all of these are shown."""
    counts: Counter[str] = Counter()
    async with asyncio.timeout(60):
        while not contents <= counts.keys():
            event = await device.events.get()
            if event["type"] == "push":
                counts[event["content"]] += 1
    while not device.events.empty():
        event = device.events.get_nowait()
        if event["type"] == "push":
            counts[event["content"]] += 1
    return counts
