"""The browser's Back from the review of a push leads to the form as it was filled in."""

from playwright.async_api import expect

from tests.console.browser.chromium import chromium_page
from tests.console.conftest import ConsoleInstallation
from tests.console.pushes.test_pages import device

TYPED = {"Title": "Storm", "Text": "Stay inside.", "String tags": "news", "Region": "北京市", "OS version": "14"}


async def test_nothing_that_was_typed_is_lost_on_the_way_back_from_the_review(console: ConsoleInstallation) -> None:
    appkey = await console.app("News", await console.team("News", anna="sender"))
    await device(console, appkey, "token-1", "alice")
    async with chromium_page(await console.logged_in("anna")) as page:
        await page.goto(f"/apps/{appkey}/send")
        await page.get_by_text("Attributes of devices (Android)").click()
        for label, value in TYPED.items():
            await page.get_by_label(label, exact=False).first.fill(value)
        await page.get_by_role("button", name="Review").click()
        await expect(page.get_by_role("heading", name="Review")).to_be_visible()
        await page.go_back()
        for label, value in TYPED.items():
            await expect(page.get_by_label(label, exact=False).first).to_have_value(value)
