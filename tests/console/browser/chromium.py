"""Chromium on the pages of a console that listens at no port: its requests are answered by a logged-in Browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Page, Route

from testkit.edge.browser import running_browser
from tests.console.conftest import Browser


@asynccontextmanager
async def chromium_page(visitor: Browser) -> AsyncIterator[Page]:
    """Yield a page of Chromium with the session of `visitor`. Streams, which never end, are refused."""

    async def answer(route: Route) -> None:
        request = route.request
        if request.url.endswith("/live"):
            await route.abort()
            return
        kind = await request.header_value("content-type") or ""
        answered = await visitor.http.request(
            request.method,
            request.url,
            content=request.post_data_buffer or b"",
            headers={"content-type": kind, "accept-language": "en"},
            follow_redirects=True,
        )
        headers = {"content-type": answered.headers.get("content-type", "text/plain")}
        await route.fulfill(status=answered.status_code, headers=headers, body=answered.content)

    async with running_browser() as browser:
        page = await browser.new_page(base_url="http://console", reduced_motion="reduce")
        await page.route("**/*", answer)
        yield page
