"""The JavaScript SDK in a real browser with the real gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.push.v1.push_pb2 import Message
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.programs import BROWSERS, needed
from testkit.repository import ROOT
from tests.contract.sdk.site import Site

FILES = {
    "/": (Path(__file__).parent / "page.html", "text/html"),
    "/carillon-device.js": (ROOT / "sdk" / "carillon-device.js", "text/javascript"),
}


@pytest.fixture
def chromium() -> str:
    return needed(*BROWSERS)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site(FILES)
    yield site
    await asyncio.to_thread(site.close)


@pytest.fixture
async def browser(chromium: str, real_gateway: RunningGateway, site: Site, tmp_path: Path) -> AsyncIterator[None]:
    page = f"{site.url}?url=ws://127.0.0.1:{real_gateway.port}/device/v1&appkey={ANDROID}"
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    process = await asyncio.create_subprocess_exec(
        chromium, *options, f"--user-data-dir={tmp_path / 'profile'}", page,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    yield
    process.terminate()
    await process.wait()


async def test_a_page_is_the_same_device_after_a_reload(
    browser: None, real_gateway: RunningGateway, site: Site
) -> None:
    welcome = (await site.next("event"))["token"]
    assert (await site.next("device"))["alias"] == "browser"
    (connection,) = await real_gateway.delivery.until(real_gateway.delivery.connections)
    real_gateway.delivery.send(Message(content="hello"), [connection], [1])
    real_gateway.delivery.send(Message(content="reload"), [connection], [2])
    assert [(await site.next("push"))["content"] for _ in range(2)] == ["hello", "reload"]
    await real_gateway.delivery.until(
        lambda: sorted(row[1:] for row in real_gateway.delivery.reports()) == [(1, 2), (2, 2)]
    )
    again = await site.next("event")
    assert (again["token"], again["new"]) == (welcome, False)
    await site.next("device")
    connection = (await real_gateway.delivery.until(lambda: real_gateway.delivery.connections()[1:]))[0]
    real_gateway.delivery.send(Message(content="hello"), [connection], [1])
    real_gateway.delivery.send(Message(content="another"), [connection], [3])
    assert (await site.next("push"))["content"] == "another"
    await real_gateway.delivery.until(lambda: sorted(row[1] for row in real_gateway.delivery.reports()) == [1, 1, 2, 3])
