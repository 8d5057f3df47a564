"""Pages in a real browser whose stream is lost say so, and load what they left out while they were hidden."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Page, Route, expect

from protos.analytics.v1.analytics_pb2 import PushSpeedResponse, SpeedLine
from tests.console.announcements import everything_works, some_time_later
from tests.console.browser.chromium import chromium_page
from tests.console.conftest import Browser, ConsoleInstallation
from tests.console.pushes.test_pages import MSGID, push_of_app, viewer_of

LOST = "The connection is lost; the numbers shown are older ones."
_HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", { get: () => isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@asynccontextmanager
async def overview(console: ConsoleInstallation) -> AsyncIterator[tuple[Page, Browser]]:
    """Yield the overview of a working installation, whose stream does not answer, and the browser with its session."""
    await console.user("root", administrator=True)
    some_time_later(console)
    everything_works(console)
    visitor = await console.logged_in("root")
    async with chromium_page(visitor) as page:
        await page.goto("/")
        await expect(page.get_by_text("Everything works.")).to_be_visible()
        yield page, visitor


async def answer_with_an_event(route: Route) -> None:
    await route.fulfill(content_type="text/event-stream", body="retry: 1000\n: live\n\n")


async def test_a_page_says_that_its_stream_is_lost_until_it_is_back(console: ConsoleInstallation) -> None:
    async with overview(console) as (page, _):
        line = page.get_by_text(LOST)
        await expect(line).to_be_visible()
        await page.route("**/live", answer_with_an_event)
        await expect(line).to_be_hidden()


async def test_a_page_whose_session_ended_while_it_was_hidden_goes_to_the_log_in(console: ConsoleInstallation) -> None:
    async with overview(console) as (page, visitor):
        await page.route("**/live", answer_with_an_event)
        await page.evaluate(_HIDE, True)
        visitor.http.cookies.clear()

        async def refuse(route: Route) -> None:
            await route.fulfill(status=(await visitor.get("/live", accept="text/event-stream")).status_code)

        await page.route("**/live", refuse)
        await page.evaluate(_HIDE, False)
        await expect(page.get_by_label("Password")).to_be_visible()


async def test_the_speed_of_a_push_that_was_opened_in_the_background_is_loaded_once_it_is_seen(
    console: ConsoleInstallation,
) -> None:
    appkey = await push_of_app(console)
    line = SpeedLine(event="received", devices=1000, half_ms=350, p90_ms=2400, p99_ms=90_000, all_ms=7_500_000)
    console.analytics.speeds[MSGID] = PushSpeedResponse(appkey=appkey, within_ms=6000, step_ms=100, lines=[line])
    async with chromium_page(await viewer_of(console)) as page:
        await page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })")
        await page.goto(f"/apps/{appkey}/pushes/{MSGID}")
        again = page.get_by_role("link", name="Load again")
        await expect(again).to_have_count(0)
        await page.evaluate(_HIDE, False)
        await expect(again).to_be_visible()
