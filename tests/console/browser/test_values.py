"""The lists of values in a browser: by keyboard, with the focus where one goes on, and the Enter key as before."""

from playwright.async_api import expect

from tests.console.browser.chromium import chromium_page
from tests.console.conftest import ConsoleInstallation
from tests.console.pushes.test_pages import device


async def test_a_tag_is_chosen_by_keyboard_and_the_enter_key_leads_to_the_review(console: ConsoleInstallation) -> None:
    appkey = await console.app("News", await console.team("News", anna="sender"))
    await device(console, appkey, "token-1", "alice")
    async with chromium_page(await console.logged_in("anna")) as page:
        await page.goto(f"/apps/{appkey}/send")
        await page.locator("#f-title").fill("Storm")
        await page.get_by_role("button", name="Choose from a list: String tags", exact=True).press("Enter")
        await expect(page.get_by_role("status")).to_have_text("1 value")
        await page.get_by_label("Search").fill("nothing")
        await page.get_by_label("Search").press("Enter")
        await expect(page.get_by_role("status")).to_have_text("No device has such a value now.")
        await page.get_by_label("Search").fill("NEWS")
        await page.get_by_label("Search").press("Enter")
        await page.get_by_role("checkbox", name="sports & <news>").press("Space")
        await page.get_by_role("button", name="Take the chosen ones").press("Enter")
        await expect(page.locator("#f-stag")).to_have_value("sports & <news>")
        await expect(page.locator("#f-stag")).to_be_in_viewport()
        await page.locator("#f-content").fill("Stay inside")
        await page.locator("#f-title").press("Enter")
        await expect(page.get_by_role("heading", name="Review")).to_be_visible()
        await expect(page.get_by_text("1 device would get it now")).to_be_visible()
