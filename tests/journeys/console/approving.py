"""The approval part of the console's journey: two people decide about drafts, each in a browser of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Page, expect

from tests.journeys.console.sending import submit_to_all


async def decide_as_a_second_person(page: Page, link: str, password: str, appkey: str) -> None:
    """Let an approver reject the draft that is open, and approve the next one, which a virtual phone then shows.

    `link`: the approver's one-time link. The tab of `page` has a virtual phone of the app.
    """
    async with _another_browser(page) as approver:
        await approver.goto(link)
        await approver.get_by_label("New password").fill(password)
        await approver.get_by_label("Repeat the password").fill(password)
        await approver.get_by_role("button", name="Set password and log in").click()
        await open_draft(approver, "To everybody")
        await approver.get_by_label("Reason").fill("Not at night")
        await approver.get_by_role("button", name="Reject").click()
        await expect(approver.get_by_role("status")).to_have_text("The push is rejected.")
        await page.reload()
        await expect(page.get_by_text("Not at night")).to_be_visible()

        await submit_to_all(page, appkey, "Good morning")
        await expect(page.get_by_role("button", name="Withdraw")).to_be_visible()
        await expect(page.get_by_role("button", name="Approve and send")).to_have_count(0)
        await open_draft(approver, "Good morning")
        await page.goto(f"/apps/{appkey}/phone")
        await expect(page.locator("#state")).to_have_text("Online")
        await expect(page.get_by_text("Good morning")).to_have_count(0)
        await approver.get_by_role("button", name="Approve and send").click()
        await expect(approver.get_by_role("status")).to_have_text("The push is approved and sent.")
        await expect(page.get_by_role("list", name="Notifications").get_by_text("Good morning")).to_be_visible()


@asynccontextmanager
async def _another_browser(page: Page) -> AsyncIterator[Page]:
    """Yield a page without the cookies of this one."""
    assert page.context.browser is not None
    context = await page.context.browser.new_context(locale="en-GB", reduced_motion="reduce")
    context.set_default_timeout(60_000)
    try:
        yield await context.new_page()
    finally:
        await context.close()


async def open_draft(page: Page, text: str) -> None:
    """Open the page of the waiting draft with this text, as its team's people find it."""
    await page.get_by_role("navigation").get_by_role("link", name="Drafts").click()
    await page.get_by_role("row").filter(has_text=text).get_by_role("rowheader").get_by_role("link").click()
    await expect(page.get_by_role("heading", name="Approval")).to_be_visible()
