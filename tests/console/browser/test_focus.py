"""The keyboard's focus in a real browser: it stays on a link of a part that changes while the page is open."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from playwright.async_api import Page, expect

from console.overview.streams import HEARTBEAT_S
from protos.analytics.v1.analytics_pb2 import AuditPushResponse, PushSpeedResponse, SpeedLine
from protos.runtime.v1.processes_pb2 import AppDevices
from services.net.http.server import HttpListener
from testkit.edge.browser import running_browser
from testkit.services import running_services
from tests.console.announcements import announce, everything_works, some_time_later, status_of
from tests.console.conftest import START_MS, ConsoleInstallation
from tests.console.pushes.test_pages import MSGID, push_of_app, viewer_of

BOUND_S = 60
_COUNT_PARTS = "document.addEventListener('htmx:sseMessage', () => { window.parts = (window.parts ?? 0) + 1; })"


@pytest.fixture
async def page(console: ConsoleInstallation) -> AsyncIterator[Page]:
    """A page of the console in a browser; nobody is logged in."""
    listener = HttpListener("console", console.application, "127.0.0.1", 0)
    async with running_services([listener]):
        async with running_browser() as browser:
            context = await browser.new_context(base_url=f"http://127.0.0.1:{listener.port}", locale="en-GB")
            context.set_default_timeout(BOUND_S * 1000)
            yield await context.new_page()
        console.clock.move(HEARTBEAT_S)  # a stream notices then that its reader has left


async def open_as_viewer(console: ConsoleInstallation, page: Page, path: str, parts: int) -> None:
    """Open a page in the session of a viewer of News, and wait until each of its live parts has come once."""
    viewer = await viewer_of(console)
    await page.goto("/log-in")
    await page.context.add_cookies(
        [{"name": name, "value": value, "url": page.url} for name, value in viewer.http.cookies.items()]
    )
    await page.add_init_script(_COUNT_PARTS)
    await page.goto(path)
    async with asyncio.timeout(BOUND_S):
        while await page.evaluate("window.parts ?? 0") < parts:
            await asyncio.sleep(0.01)


async def stays_focused(page: Page, name: str, change: Callable[[], None], text: str) -> None:
    """Focus the link with the id `name`, make a change, and wait until the link has the text and still the focus."""
    link = page.locator(f"[id='{name}']")
    await link.focus()
    await expect(link).to_be_focused()
    change()
    await expect(link).to_have_text(text, timeout=BOUND_S * 1000)
    await expect(link).to_be_focused()


async def test_numbers_that_change_keep_the_focus(console: ConsoleInstallation, page: Page) -> None:
    appkey = await push_of_app(console)
    some_time_later(console)
    everything_works(console)

    def devices_connect(count: int) -> None:
        announce(console, gateway2=status_of("gateway", devices=[AppDevices(appkey=appkey, count=count)]))
        console.clock.move(5)

    def devices_receive(count: int) -> None:
        console.analytics.statistics[appkey].broadcasts[0].received = count
        console.clock.move(5)

    devices_connect(41)
    await open_as_viewer(console, page, "/", parts=3)
    await expect(page.locator(f"[id='push-{MSGID}-received']")).to_be_visible()
    for count in (42, 43):
        await stays_focused(page, f"online-devices-{appkey}", partial(devices_connect, count), str(count))
    await stays_focused(page, f"push-{MSGID}-received", partial(devices_receive, 1_111), "1,111")
    await stays_focused(page, f"push-{MSGID}-received", partial(devices_receive, 1_112), "1,112")


async def test_the_page_of_a_push_keeps_the_focus(console: ConsoleInstallation, page: Page) -> None:
    appkey = await push_of_app(console)
    console.analytics.pushes[MSGID].states.add(state="pending", devices=3)
    console.analytics.pushes[MSGID].timeline.add(event="sent", count=1_111, first_ms=START_MS, last_ms=START_MS)
    line = SpeedLine(event="received", devices=1000, half_ms=350, p90_ms=2400, p99_ms=90_000, all_ms=7_500_000)
    console.analytics.speeds[MSGID] = PushSpeedResponse(
        appkey=appkey, within_ms=6000, step_ms=100, ranges_ms=[6000, 600_000], lines=[line]
    )

    def counted(entries: str, index: int, field: str, count: int) -> None:
        answer = AuditPushResponse()
        answer.CopyFrom(console.analytics.pushes[MSGID])
        setattr(getattr(answer, entries)[index], field, count)
        console.analytics.pushes[MSGID] = answer
        console.clock.move(3)

    devices_fail = partial(counted, "states", 1, "devices")
    devices_are_sent = partial(counted, "timeline", 0, "count")
    await open_as_viewer(console, page, f"/apps/{appkey}/pushes/{MSGID}", parts=2)
    for count in (201, 202):
        await stays_focused(page, "state-failed-no%20disk", partial(devices_fail, count), str(count))
    await stays_focused(page, "event-sent", partial(devices_are_sent, 1_112), "1,112")
    await stays_focused(page, "event-sent", partial(devices_are_sent, 1_113), "1,113")
    longer = page.get_by_role("link", name="10 min")
    await longer.focus()
    console.analytics.speeds[MSGID].within_ms = 600_000
    await page.keyboard.press("Enter")
    await expect(longer).to_have_attribute("aria-current", "true")
    await expect(longer).to_be_focused()
