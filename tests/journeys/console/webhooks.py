"""The part about webhooks of the console's journey: adds a receiver, tests it, and reads what was sent to it."""

import re

from playwright.async_api import Page, expect

from testkit.edge.browser import reload_until
from testkit.webhook_receiver import WebhookReceiver


async def add_a_webhook(page: Page, appkey: str, receiver: WebhookReceiver) -> None:
    """Add a webhook for devices that register, in the browser, and send it a test event."""
    await page.goto(f"/apps/{appkey}")
    await page.get_by_role("link", name="Webhooks").click()
    await expect(page.get_by_text("The app has no webhooks.")).to_be_visible()
    await page.get_by_label("URL of the receiver").fill(receiver.url)
    await page.get_by_label("device.registered").check()
    await page.get_by_role("button", name="Add a webhook").click()
    secret = await page.get_by_label("Secret of the webhook", exact=True).inner_text()
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", secret)
    await page.reload()
    await expect(page.get_by_text(secret)).to_have_count(0)
    row = page.get_by_role("row").filter(has_text=receiver.host)
    await expect(row).to_contain_text("device.registered")
    await reload_until(page, row.get_by_text("works"))  # the role learns of it from the log
    await row.get_by_role("button", name="Send a test event").click()
    await expect(page.get_by_text("The receiver took the test event.")).to_be_visible()
    assert [event["type"] for event in receiver.events] == ["webhook.test"]


async def read_its_requests(page: Page, appkey: str, receiver: WebhookReceiver) -> list[str]:
    """Read the request with which the receiver got to know of a device; return the paths of the pages."""
    await receiver.until_events(2)
    taken = receiver.taken[-1]
    assert taken.events[-1]["type"] == "device.registered"
    await page.goto(f"/apps/{appkey}/webhooks")
    await page.get_by_role("link", name=receiver.host).click()
    request = page.get_by_role("row").filter(has_text=taken.headers["webhook-id"])
    await reload_until(page, request)  # it is noted once the answer is stored
    await expect(request).to_contain_text("HTTP 204")
    return [f"/apps/{appkey}/webhooks", page.url]
