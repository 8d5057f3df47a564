"""The overview in a real browser: a process for each role, each of which announces itself in Kafka."""

import re
from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Page, expect

from testkit.device import VirtualDevice
from testkit.edge.browser import running_browser
from testkit.installation.app_server import AppServer
from testkit.installation.processes import Installation
from testkit.kafka.broker import kafka
from tests.journeys.console.test_console import PASSWORD, check_pages
from tests.journeys.test_push import message, shown

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with kafka(tmp_path_factory.mktemp("broker")) as broker:
        installation = Installation(tmp_path_factory.mktemp("overview") / "data", broker.bootstrap, console=True)
        installation.start()
        yield installation
        installation.close()


@pytest.fixture
async def page(installation: Installation) -> AsyncIterator[Page]:
    async with running_browser() as browser:
        context = await browser.new_context(
            base_url=installation.console_url(), locale="en-GB", reduced_motion="reduce"
        )
        context.set_default_timeout(60_000)
        yield await context.new_page()


async def log_in_first(installation: Installation, page: Page) -> None:
    link = re.search(r"http://\S+(/link\?token=\S+)", installation.output("console").read_text())
    assert link is not None
    await page.goto(link[1])
    await page.get_by_label("New password").fill(PASSWORD)
    await page.get_by_label("Repeat the password").fill(PASSWORD)
    await page.get_by_role("button", name="Set password and log in").click()
    await page.get_by_role("link", name="Not now").click()


async def test_the_overview_moves_and_names_a_role_that_is_stopped(installation: Installation, page: Page) -> None:
    app = installation.create_app()
    await log_in_first(installation, page)
    state = page.get_by_role("status").filter(has_text="works")
    await expect(state).to_have_text("Everything works.")
    loads: list[str] = []
    page.on("load", lambda loaded: loads.append(loaded.url))

    server = AppServer(installation.v2_url)
    device = VirtualDevice(installation.gateway_url, app.appkey)
    await device.connect()
    tile = page.locator(".tile").filter(has_text="devices online")
    await expect(tile).to_contain_text("1")
    assert (await server.push(message(app, 1, "Storm"), app.secret_key))["result"] == 0
    assert (await shown(device))["content"] == "Storm"
    requests = page.locator(".tile").filter(has_text="sent a second")
    await expect(requests.locator(".tile-number")).not_to_have_text("0")
    await device.close()
    await server.close()

    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="delivery", exact=True)).first
    await expect(row).to_contain_text("works")
    installation.stop("delivery")
    await expect(row).to_contain_text("away")
    await expect(page.get_by_role("status").filter(has_text="Not everything works")).to_contain_text("delivery – away")
    installation.kill("gateway")
    await expect(page.locator("main")).to_contain_text("is silent since")
    installation.start("delivery", "gateway")
    await expect(row).to_contain_text("works")
    assert loads == []
    await page.get_by_text("Processes").last.click()
    await check_pages(page, ["", "/"])
    await a_page_comes_by_itself_once_analytics_is_back(installation, page)
    await page.goto("/")
    installation.stop()


async def a_page_comes_by_itself_once_analytics_is_back(installation: Installation, page: Page) -> None:
    installation.stop("analytics")
    await page.goto("/pushes")
    await expect(page.get_by_role("status")).to_contain_text("This page tries again by itself.")
    installation.start("analytics")
    await expect(page.get_by_role("row").filter(has_text="Storm")).to_be_visible()
