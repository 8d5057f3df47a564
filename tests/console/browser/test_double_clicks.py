"""A form that is submitted again before it is answered, as by a double click, is sent once by a real browser."""

from playwright.async_api import Page

from tests.console.browser.chromium import chromium_page
from tests.console.conftest import ConsoleInstallation

_NOTE_SUBMITS = """
window.sent = [];
window.addEventListener("submit", (event) => { window.sent.push(!event.defaultPrevented); event.preventDefault(); });
"""


async def clicked_twice(page: Page) -> list[bool]:
    """Press the button two times; return for each time whether the form would have been sent."""
    button = page.get_by_role("button", name="Register")
    for _ in range(2):
        await button.click()
    sent: list[bool] = await page.evaluate("window.sent.splice(0)")
    return sent


async def test_a_form_is_sent_once_until_its_page_is_shown_again_or_ten_seconds_are_over(
    console: ConsoleInstallation,
) -> None:
    await console.user("root", administrator=True)
    async with chromium_page(await console.logged_in("root")) as page:
        await page.clock.install()
        await page.add_init_script(_NOTE_SUBMITS)
        await page.goto("/apps/new")
        await page.get_by_label("Name").fill("Weather")
        await page.get_by_label("Package").fill("org.example.weather")
        assert await clicked_twice(page) == [True, False]
        await page.evaluate("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
        assert await clicked_twice(page) == [True, False]
        await page.clock.run_for(10_000)
        assert await clicked_twice(page) == [True, False]
