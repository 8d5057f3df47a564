"""The button that copies a text, in a real browser."""

from playwright.async_api import Page, Route, expect

from testkit.edge.browser import running_browser
from tests.console.conftest import Browser, ConsoleInstallation

HOST_NAME = "http://console.example"
"""An address without TLS, where browsers have no clipboard."""


async def opened(page: Page, browser: Browser, path: str) -> None:
    """Open a page of the console, with its files, as this user gets it."""

    async def answer(route: Route) -> None:
        found = await browser.http.get(route.request.url.removeprefix(HOST_NAME))
        headers = {name: found.headers[name] for name in ("content-type", "content-security-policy")}
        await route.fulfill(status=found.status_code, headers=headers, body=found.content)

    await page.route(f"{HOST_NAME}/**", answer)
    await page.goto(HOST_NAME + path)


async def test_where_there_is_no_clipboard_the_text_is_selected(console: ConsoleInstallation) -> None:
    await console.user("alice")
    alice = await console.logged_in("alice")
    async with running_browser() as chromium:
        page = await chromium.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        await opened(page, alice, "/account/second-factor")
        assert await page.evaluate("navigator.clipboard === undefined")
        secret = await page.locator(".copyable code").inner_text()
        await page.get_by_role("button", name="Copy").click()
        await expect(page.locator(".copyable button")).to_have_text("Selected: press Ctrl+C")
        assert await page.evaluate("getSelection().toString()") == secret
        assert errors == []
