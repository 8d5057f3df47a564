"""The virtual phone as a real subscription of a browser to Web Push: pushes reach it while its page is closed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, CDPSession, Page, expect

from services.process.clock import SystemClock
from services.webpush_simulator.server import WebPushSimulator
from testkit.delivery.firefox import firefox_tabs
from testkit.delivery.mozilla import DECRYPTED, MozillaPushService, running_firefox
from testkit.edge.browser import EXPECT_MS, reload_until, running_browser
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.ports import free_ports
from testkit.services import running_services
from testkit.waiting import until_holds
from tests.journeys.test_push import audited, message

PASSWORD = "correct horse battery staple"
BOUND_S = 90

# Chromium subscribes at its vendor's service alone: in its place the page gets a subscription to the test's.
SUBSCRIPTION = """(() => {
    let subscription = null;
    PushManager.prototype.getSubscription = async () => subscription;
    PushManager.prototype.subscribe = async ({ applicationServerKey }) => {
        const made = await window.subscribed(applicationServerKey);
        return (subscription = {
            options: { applicationServerKey: null }, toJSON: () => made,
            unsubscribe: async () => ((subscription = null), true),
        });
    };
})()"""
# No call of the browser's tools clicks on a notification.
CLICK = """async () => {
    const [notification] = await registration.getNotifications();
    self.dispatchEvent(new NotificationEvent("notificationclick", { notification }));
}"""


class PhoneInBrowser:
    """The page of an app's virtual phone in Chromium, a second page of the console, and the worker's push service."""

    def __init__(self, context: BrowserContext, push_service: WebPushSimulator, path: str) -> None:
        self.context = context
        self.path = path
        self._push_service = push_service
        self._registrations: list[str] = []
        self.console: Page
        self._tools: CDPSession

    async def open(self, link: str) -> None:
        """Log in on the second page, which stays open."""
        await self.context.expose_function("subscribed", self._subscribed)
        await self.context.add_init_script(SUBSCRIPTION)
        self.console = await self.context.new_page()
        await self.console.goto(link)
        await self.console.get_by_label("New password").fill(PASSWORD)
        await self.console.get_by_label("Repeat the password").fill(PASSWORD)
        await self.console.get_by_role("button", name="Set password and log in").click()
        self._tools = await self.context.new_cdp_session(self.console)
        self._tools.on("ServiceWorker.workerRegistrationUpdated", self._note)
        await self._tools.send("ServiceWorker.enable")

    def _note(self, event: dict[str, Any]) -> None:
        self._registrations += [each["registrationId"] for each in event["registrations"]]

    async def _subscribed(self, application_key: str) -> dict[str, object]:
        browser = self._push_service.subscribe("phone", application_key)
        return browser.to_json(self._push_service.endpoint(browser))

    async def allow(self, setting: str) -> None:
        about = await self._tools.send("Target.getTargetInfo")
        permission = {"permission": {"name": "notifications"}, "setting": setting}
        browser = {"browserContextId": about["targetInfo"]["browserContextId"]}
        await self._tools.send("Browser.setPermission", {**permission, **browser})

    async def phone(self) -> Page:
        page = await self.context.new_page()
        await page.goto(self.path)
        return page

    async def bring(self, number: int) -> str:
        """Bring the message with this number from the push service to the worker; return the notification's text."""
        async with asyncio.timeout(BOUND_S):
            await self._push_service.wait_for(number)
        await until_holds(lambda: bool(self._registrations))
        got = self._push_service.received[number - 1]
        assert got.plaintext is not None
        origin = re.match(r"https?://[^/]+", self.console.url)
        assert origin is not None
        delivered = {"origin": origin[0], "registrationId": self._registrations[-1], "data": got.plaintext.decode()}
        await self._tools.send("ServiceWorker.deliverPushMessage", delivered)
        return str(json.loads(got.plaintext)["content"])

    async def in_worker(self, script: str) -> Any:
        return await self.context.service_workers[0].evaluate(script)


@pytest.fixture
async def push_service() -> AsyncIterator[WebPushSimulator]:
    service = WebPushSimulator(SystemClock())
    async with running_services([service]):
        yield service


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path / "data", None)
    installation.env |= {"CARILLON_WEBPUSH": "internet", "CARILLON_CHANNEL_GRACE_S": "5"}
    await asyncio.to_thread(installation.start)
    yield installation
    installation.close()


async def set_up(installation: Installation, push_service: WebPushSimulator) -> tuple[AppCredentials, str]:
    """Return an app with a Web Push key, and the link of the first log-in."""
    app = await asyncio.to_thread(installation.create_app)
    await asyncio.to_thread(
        installation.carillon, "app", "set", app.appkey, "--webpush", "new",
        "--webpush-contact", "mailto:push@example.org", "--webpush-hosts", push_service.authority,
    )  # fmt: skip
    link = re.search(r"http://\S+(/link\?token=\S+)", installation.output().read_text())
    assert link is not None
    return app, link[1]


async def stored_identity(page: Page, storage: str, app: AppCredentials) -> dict[str, str]:
    text = await page.evaluate(f"{storage}.getItem('carillon-phone-{app.appkey}')")
    return {"appkey": app.appkey, **{name: json.loads(text)[name] for name in ("token", "key")}}


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_subscribed_phone_gets_pushes_in_chromium_while_its_page_is_closed(
    installation: Installation, push_service: WebPushSimulator
) -> None:
    app, link = await set_up(installation, push_service)
    server = AppServer(installation.v2_url)
    async with running_browser() as browser:
        context = await browser.new_context(base_url=installation.console_url(), locale="en-GB")
        context.set_default_timeout(EXPECT_MS)
        found = PhoneInBrowser(context, push_service, f"/apps/{app.appkey}/phone")
        await found.open(link)

        page = await found.phone()
        state = page.locator("#web-push-state")
        origin = installation.console_url().rstrip("/")
        await expect(state).to_have_text(
            f"Not possible: the app's settings do not name {origin} as an origin of its site."
        )
        await asyncio.to_thread(installation.carillon, "app", "set", app.appkey, "--web-origins", origin)
        await found.allow("denied")
        await reload_until(page, page.locator(f'#web-push[data-origins*="{origin}"]'))
        await expect(state).to_contain_text("The browser blocks notifications of this site.")
        await expect(page.get_by_role("button", name="Subscribe to Web Push")).to_be_hidden()
        await found.allow("granted")
        await page.reload()
        await expect(state).to_have_text("Not subscribed.")
        await page.get_by_role("button", name="Subscribe to Web Push").click()
        await expect(state).to_contain_text("Subscribed.")
        identity = await stored_identity(page, "localStorage", app)
        assert await page.evaluate("sessionStorage.getItem('carillon-phone-' + phone.dataset.appkey)") is None

        other = await found.phone()
        await expect(other.locator("#web-push-state")).to_have_text("The phone of another tab is subscribed.")
        await expect(other.locator("#token")).not_to_have_text(identity["token"])
        await other.close()
        await page.close()

        target = {"android": identity["token"]}
        sent = await server.push(message(app, 5, "Guten Tag", token=target), app.secret_key)
        assert await found.bring(1) == "Guten Tag"
        await audited(installation, sent["id"], "handed_over", "received", "shown")
        await found.in_worker(CLICK)
        report = await audited(installation, sent["id"], "clicked")
        counts = {entry["event"]: int(entry["count"]) for entry in report["timeline"]}
        assert {counts[event] for event in ("handed_over", "received", "shown", "clicked")} == {1}

        page = await found.phone()
        await expect(page.locator("#web-push-state")).to_contain_text("Subscribed.")
        await expect(page.locator("#token")).to_have_text(identity["token"])
        await server.push(message(app, 5, "over its connection", token=target), app.secret_key)
        await expect(page.locator("#notifications").get_by_text("over its connection")).to_be_visible()
        assert len(push_service.received) == 1

        get_device = {"type": "get_device", "id": 1, **identity}
        assert (await server.device_request(get_device))["channels"] == ["webpush"]
        await page.get_by_role("button", name="End the subscription").click()
        await expect(page.locator("#web-push-state")).to_have_text("Not subscribed.")
        assert not (await server.device_request(get_device)).get("channels")
        assert await stored_identity(page, "sessionStorage", app) == identity

        await page.add_init_script("Object.defineProperty(globalThis, 'isSecureContext', { value: false })")
        await page.reload()
        await expect(page.locator("#web-push-state")).to_have_text(
            f"Not possible at {origin}: browsers accept pushes for pages with HTTPS, and for localhost."
        )
        await expect(page.locator("#token")).to_have_text(identity["token"])
    await server.close()


LOG_IN = f"""(() => {{
    for (const field of document.querySelectorAll("input[type=password]")) field.value = "{PASSWORD}";
    document.querySelector("main form").requestSubmit();
}})()"""
STATE = 'document.getElementById("web-push").dataset.state'


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_subscribed_phone_gets_pushes_in_firefox_while_its_page_is_closed(
    tmp_path: Path, installation: Installation
) -> None:
    """Firefox subscribes at a push service of the test, as it does at Mozilla's, and decrypts what that brings."""
    push_service = MozillaPushService()
    server = AppServer(installation.v2_url)
    (port,) = free_ports(1)
    async with running_services([push_service]):
        app, link = await set_up(installation, push_service)
        origin = installation.console_url().rstrip("/")
        await asyncio.to_thread(installation.carillon, "app", "set", app.appkey, "--web-origins", origin)
        async with (
            running_firefox(tmp_path / "profile", push_service, "about:blank", commands_port=port),
            firefox_tabs(port) as tabs,
        ):
            console = await tabs.open(f"{origin}{link}")
            await tabs.evaluate(console, LOG_IN)
            await tabs.until(console, 'location.pathname !== "/link"')
            path = f"{origin}/apps/{app.appkey}/phone"
            phone = await tabs.open(path)
            await tabs.until(phone, f'{STATE} === "off"')
            await asyncio.wait_for(push_service.has_client.wait(), BOUND_S)  # before, Firefox does not subscribe
            await tabs.evaluate(phone, 'document.getElementById("subscribe").click()')
            await tabs.until(phone, f'{STATE} === "on"')
            token = await tabs.evaluate(phone, 'document.getElementById("token").textContent')
            await tabs.close(phone)

            target = {"android": token}
            sent = await server.push(message(app, 5, "Guten Tag", token=target), app.secret_key)
            await until_holds(lambda: push_service.codes == [DECRYPTED], BOUND_S)
            report = await audited(installation, sent["id"], "handed_over", "received", "shown")
            counts = {entry["event"]: int(entry["count"]) for entry in report["timeline"]}
            assert {counts[event] for event in ("handed_over", "received", "shown")} == {1}

            phone = await tabs.open(path)
            await tabs.until(phone, f'{STATE} === "on"')
            assert await tabs.evaluate(phone, 'document.getElementById("token").textContent') == token
            await tabs.until(phone, '!document.getElementById("unsubscribe").disabled')  # after the renewal
            await tabs.evaluate(phone, 'document.getElementById("unsubscribe").click()')
            await tabs.until(phone, f'{STATE} === "off"')
            assert not push_service.kept_count
    await server.close()
