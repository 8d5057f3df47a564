"""Long words stay within the page, on a phone and on a screen, as Chromium lays it out."""

import json

from playwright.async_api import Page

from protos.analytics.v1.analytics_pb2 import (
    AuditDeviceResponse,
    BroadcastRow,
    ChannelCounts,
    StatisticsResponse,
    TimelineEntry,
)
from tests.console.browser.chromium import chromium_page
from tests.console.conftest import START_MS, ConsoleInstallation
from tests.console.pushes.test_pages import MSGID, audit, device, push_of_app, viewer_of
from tests.console.pushes.test_scheduled import scheduled
from tests.console.send.test_pages import sender_of

WIDTHS = (390, 1280)
NARROW_PHONE = 360
LONG_NAME = "An app with a long name " + "W" * 35
URL = "https://news.example.org/" + "a-very-long-path-of-an-article/" * 4 + "x" * 60
COUNTS = dict.fromkeys(("target", "sent", "received", "shown", "clicked", "failed", "expired", "cancelled"), 1357)


async def too_wide(page: Page) -> list[str]:
    """Return what is wider than its place: the page, or on a screen a table in its card."""
    found: list[str] = await page.evaluate(
        """() => [document.documentElement, ...document.querySelectorAll(".table-card")]
          .filter(element => element.scrollWidth > element.clientWidth)
          .map(element => `${element.tagName} ${element.scrollWidth} > ${element.clientWidth}`)"""
    )
    return found


async def test_long_words_and_many_columns_stay_within_the_page(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer")
    appkey = await console.app(LONG_NAME, team_id)
    request_json = json.dumps({"msgStyle": {"android": {"title": URL}, "basic": {"content": URL, "is_notif": 1}}})
    console.analytics.pushes[MSGID] = audit(appkey, request_json=request_json)
    channels = [ChannelCounts(channel=name, simulated=True, sent=10**6) for name in ("webpush", "fcm")]
    row = BroadcastRow(msgid=MSGID, sent_ms=START_MS, info="香港特别行政区", channels=channels, **COUNTS)
    console.analytics.statistics[appkey] = StatisticsResponse(broadcasts=[row, row])
    console.analytics.words[MSGID] = (URL, URL)
    paths = (
        f"/apps/{appkey}/pushes/{MSGID}",
        f"/apps/{appkey}",
        "/apps",
        "/pushes",
        f"/teams/{team_id}",
        f"/statistics?appkey={appkey}&kind=broadcasts&category=region&push={MSGID}",
    )
    found = {}
    async with chromium_page(await console.logged_in("viewer")) as page:
        for path in paths:
            await page.goto(path)
            for width in WIDTHS:
                await page.set_viewport_size({"width": width, "height": 800})
                if wide := await too_wide(page):
                    found[path, width] = wide
    assert found == {}


async def test_the_tasks_stay_within_the_page_and_their_times_in_a_line(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    await scheduled(console, appkey, sender, title="A title of many words " * 4, content=URL)
    found = {}
    async with chromium_page(sender) as page:
        await page.goto("/tasks")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            heights = await page.evaluate(
                "[...document.querySelectorAll('td time')].map(time => time.getClientRects().length)"
            )
            if (wide := await too_wide(page)) or max(heights) > 1:
                found[width] = wide, heights
    assert found == {}


async def test_the_facts_of_a_device_stay_within_their_card(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    await device(console, appkey, "token-1", "alice")
    left = TimelineEntry(first_ms=START_MS, last_ms=START_MS, event="disconnected", count=1)
    console.analytics.devices["token-1"] = AuditDeviceResponse(timeline=[left])
    found = {}
    async with chromium_page(await viewer_of(console)) as page:
        await page.goto(f"/apps/{appkey}/device?name=token-1")
        for width in (NARROW_PHONE, *WIDTHS):
            await page.set_viewport_size({"width": width, "height": 800})
            outside = await page.evaluate(
                """() => [...document.querySelectorAll(".facts time, .facts .badge")]
                  .filter(element => element.getBoundingClientRect().right
                    > element.closest("dd").getBoundingClientRect().right + 1)
                  .map(element => element.innerText)"""
            )
            lines = await page.evaluate("[...document.querySelectorAll('time')].map(t => t.getClientRects().length)")
            if outside or max(lines) > 1:
                found[width] = outside, lines
    assert found == {}
