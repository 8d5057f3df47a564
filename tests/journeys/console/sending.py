"""The sender's part of the console's journey: composes a push, reviews it, sends it, and copies it."""

import re

from playwright.async_api import Page, expect


async def send_a_push(page: Page, appkey: str) -> int:
    """Send a notification to the devices with a string tag; return its message id once its page is there."""
    await page.get_by_role("link", name="Send", exact=True).click()
    await page.get_by_label("App").select_option("News")
    await page.get_by_role("button", name="Compose").click()
    await expect(page).to_have_url(re.compile(f"/apps/{appkey}/send$"))
    await expect(page.get_by_label("URL to open")).to_be_hidden()
    await page.get_by_role("combobox", name="When tapped").select_option("opens a URL")
    await page.get_by_label("URL to open").fill("https://example.org/storm")
    await page.get_by_role("textbox", name="Title optional", exact=True).fill("Flood")
    await page.get_by_role("textbox", name="Text", exact=True).fill("Go upstairs")
    await expect(page.get_by_role("figure", name="Android, light").get_by_text("Go upstairs")).to_be_visible()
    await expect(page.get_by_text("Text: 11 characters, 11 bytes")).to_be_visible()
    await page.get_by_role("textbox", name="String tags optional", exact=True).fill("news")
    await page.get_by_role("button", name="Review before sending").press("Enter")
    await expect(page.get_by_text("1 device would get it now")).to_be_visible()
    await expect(page.get_by_role("cell", name="alice")).to_be_visible()
    await page.get_by_role("button", name="Edit", exact=True).click()
    await page.get_by_role("textbox", name="Text", exact=True).fill("Go upstairs now")
    await page.get_by_role("button", name="Review before sending").click()
    await page.get_by_role("button", name="Send now").click()
    await expect(page.get_by_role("heading", name="Flood")).to_be_visible()
    await expect(page.get_by_text("Go upstairs now").first).to_be_visible()
    await expect(page.get_by_role("definition").filter(has_text=" by admin")).to_be_visible()
    return int(page.url.rpartition("/")[2])


async def review_a_broadcast(page: Page, appkey: str, msgid: int) -> None:
    """Copy a push as a broadcast; a wrong number keeps it from being sent, and the review stays open."""
    await page.goto(f"/apps/{appkey}/pushes/{msgid}")
    await page.get_by_role("link", name="Send a copy").click()
    await expect(page.get_by_role("textbox", name="Text", exact=True)).to_have_value("Go upstairs now")
    await page.get_by_role("radio", name="all devices").check()
    await page.get_by_role("button", name="Review before sending").click()
    await page.get_by_label("Type the number of devices").fill("999")
    await page.get_by_role("button", name="Send now").click()
    await expect(page.get_by_role("alert")).to_contain_text("Type the number of devices")


async def submit_a_broadcast(page: Page, appkey: str) -> list[str]:
    """Name alice's device as a test device, try a broadcast on it, and submit it to a team that demands an approval.

    The app has so few devices that a push to the test devices is a broadcast too, so it precedes the rule. Returns the
    paths of the pages.
    """
    await page.goto(f"/apps/{appkey}/test-devices")
    await page.get_by_label("Alias or token").fill("alice")
    await page.get_by_role("button", name="Add").click()
    await expect(page.get_by_role("rowheader", name="alice")).to_be_visible()
    await _review_to_all(page, appkey, "To everybody")
    await page.get_by_role("button", name="Send to the test devices").click()
    await expect(page.get_by_role("status")).to_have_text("Sent to the test devices: alice.")
    await page.get_by_role("link", name="Teams", exact=True).click()
    await page.get_by_role("link", name="Newsroom").click()
    await page.get_by_label("Broadcasts need an approval").check()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status")).to_be_visible()
    await _review_to_all(page, appkey, "To everybody")
    await expect(page.get_by_role("heading", name="Everything that is sent")).to_be_visible()
    await _submit(page)
    return [f"/apps/{appkey}/test-devices", page.url, "/drafts"]


async def submit_to_all(page: Page, appkey: str, text: str) -> None:
    """Submit a broadcast for approval; its draft is open then."""
    await _review_to_all(page, appkey, text)
    await _submit(page)


async def _review_to_all(page: Page, appkey: str, text: str) -> None:
    await page.goto(f"/apps/{appkey}/send")
    await page.get_by_role("textbox", name="Text", exact=True).fill(text)
    await page.get_by_role("radio", name="all devices").check()
    await page.get_by_role("button", name="Review before sending").click()


async def _submit(page: Page) -> None:
    number = await page.locator("[name=devices]").input_value()
    await page.get_by_label("Type the number of devices").fill(number)
    await page.get_by_role("button", name="Submit for approval").click()
    await expect(page.get_by_text("another approver has to look at it")).to_be_visible()
