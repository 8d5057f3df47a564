"""The sample page of the JavaScript SDK in Chromium, with the real gateway."""

import asyncio
from urllib.parse import urlencode

from playwright.async_api import expect

from carillon_device import FINAL
from protos.push.v1.push_pb2 import AndroidStyle, Message
from testkit.edge.browser import running_browser
from testkit.gateway.role import ANDROID, IOS, RunningGateway
from testkit.repository import ROOT
from tests.contract.sdk.site import Site

SDK = ROOT / "sdk"
FILES = {
    "/sample-page/": (SDK / "sample-page/index.html", "text/html"),
    **{
        f"/{path}": (SDK / path, "text/javascript")
        for path in ("sample-page/page.js", "sample-page/worker.js", "carillon-device.js", "carillon-webpush.js")
    },
}


async def test_it_connects_shows_pushes_and_says_why_it_was_refused(real_gateway: RunningGateway) -> None:
    delivery = real_gateway.delivery
    site = Site(FILES)
    try:
        async with running_browser() as browser:
            page = await browser.new_page()
            state, pushes = page.get_by_role("status"), page.get_by_role("listitem")
            named = urlencode({"url": f"ws://127.0.0.1:{real_gateway.port}/device/v1", "appkey": ANDROID})
            await page.goto(f"{site.url}sample-page/?{named}")
            await expect(state).to_contain_text("connected, token ")
            token = await state.text_content()
            (connection,) = await delivery.until(delivery.connections)
            notification = Message(is_notif=True, content="Hello", android=AndroidStyle(title="News"))
            delivery.send(notification, [connection], [1])
            delivery.send(Message(content="for the page"), [connection], [2])
            await expect(pushes).to_have_text(["for the page", "News: Hello"])
            await delivery.until(lambda: sorted(row[1:] for row in delivery.reports()) == [(1, 2), (1, 3), (2, 2)])

            await page.reload()
            await expect(state).to_have_text(str(token))
            await page.get_by_label("Appkey").fill(IOS)
            await page.get_by_role("button", name="Connect").click()
            await expect(state).to_contain_text(FINAL["unauthorized"])

            registered = "navigator.serviceWorker.register('worker.js').then(() => navigator.serviceWorker.ready)"
            await page.evaluate(f"{registered}.then(() => true)")
            (worker,) = page.context.service_workers
            assert await worker.evaluate("typeof CarillonWebPush.takePushes") == "function"
    finally:
        await asyncio.to_thread(site.close)
