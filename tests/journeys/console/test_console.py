"""The console in a real browser on a whole installation, used as a person would use it."""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import pytest
from playwright.async_api import ConsoleMessage, Page, expect

from testkit.device import VirtualDevice
from testkit.edge.browser import accessibility_findings, running_browser
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.ports import free_ports
from testkit.webhook_receiver import WebhookReceiver
from tests.journeys.console.administration import make_a_team
from tests.journeys.console.approving import decide_as_a_second_person, open_draft
from tests.journeys.console.keyboard import explain_with_the_keyboard, send_with_the_keyboard
from tests.journeys.console.sending import review_a_broadcast, send_a_push, submit_a_broadcast
from tests.journeys.console.webhooks import add_a_webhook, read_its_requests
from tests.journeys.test_push import message

PASSWORD = "correct horse battery"
STORM = {
    "basic": {"content": "Stay inside", "is_notif": 1},
    "android": {"title": "Storm", "click_action": 1, "click_param": ""},
}
VIEWS: dict[str, tuple[Literal["light", "dark"], int]] = {
    "light": ("light", 1280),
    "dark": ("dark", 1280),
    "phone": ("light", 390),
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def receiver() -> WebhookReceiver:
    """A receiver of webhooks at an address that the installation's operator has named."""
    return WebhookReceiver(*free_ports(1))


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, receiver: WebhookReceiver) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("console") / "data", None)
    installation.env["CARILLON_WEBHOOK_HOSTS"] = receiver.host
    installation.start()
    yield installation
    installation.close()


@pytest.fixture
async def page(installation: Installation) -> AsyncIterator[Page]:
    """A page in a browser; the test fails if its scripts or styles cause an error or a warning in the browser."""
    messages: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "the server responded with a status of 4" not in message.text:
            messages.append(message.text)

    async with running_browser() as browser:
        # Without transitions: colours that are half way between light and dark would be findings.
        context = await browser.new_context(
            base_url=installation.console_url(), locale="en-GB", reduced_motion="reduce"
        )
        context.set_default_timeout(60_000)
        page = await context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: messages.append(str(error)))
        yield page
    assert messages == []


async def check_pages(page: Page, paths: list[str]) -> None:
    """Open each page in light, dark and on a phone; axe-core finds nothing, and nothing is cut off.

    An empty path: the page that is open.
    """
    findings = {}
    for name, (scheme, width) in VIEWS.items():
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": 800})
        for path in paths:
            if path:
                await page.goto(path)
            if found := await accessibility_findings(page):
                findings[name, path] = found
            overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if overflow > 0:
                findings[name, path] = [f"{overflow} pixels are cut off"]
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size({"width": 1280, "height": 800})
    assert findings == {}


async def use_a_virtual_phone(page: Page, server: AppServer, app: AppCredentials) -> None:
    await page.goto(f"/apps/{app.appkey}")
    await page.get_by_role("link", name="Virtual phone").click()
    state, notifications = page.locator("#state"), page.get_by_role("list", name="Notifications")
    await expect(state).to_have_text("Online")
    await page.get_by_label("Alias").fill("carol")
    await page.get_by_role("button", name="Set Alias").click()
    await expect(page.locator("#alias")).to_have_text("carol")
    await page.get_by_label("String tags").fill("music, sport")
    await page.get_by_role("button", name="Set String tags").click()
    await expect(page.locator("#stags")).to_have_text("music, sport")
    await page.get_by_label("String tags").fill("music")
    await page.get_by_role("button", name="Set String tags").click()
    await expect(page.locator("#stags")).to_have_text("music")
    await page.get_by_label("Numeric tags").fill("seven")
    await page.get_by_role("button", name="Set Numeric tags").click()
    await expect(page.locator("#answer")).to_contain_text("Not accepted")

    assert (await server.push(message(app, 4, "to carol", alias="carol"), app.secret_key))["result"] == 0
    shown = notifications.get_by_role("listitem").filter(has_text="to carol")
    await shown.get_by_text("to carol").click()
    await expect(page.get_by_text(re.compile(r"Notification \d+ clicked"))).to_be_visible()
    await expect(page.get_by_text("No notifications")).to_be_visible()

    await page.get_by_role("button", name="Go offline").click()
    await expect(state).to_have_text("Offline")
    assert (await server.push(message(app, 6, "while away", stag=[["music"]]), app.secret_key))["result"] == 0
    await page.get_by_role("button", name="Come back online").click()
    await expect(notifications.get_by_text("while away")).to_be_visible()
    token = await page.locator("#token").inner_text()
    await page.reload()
    await expect(notifications.get_by_text("while away")).to_be_visible()
    await expect(page.locator("#token")).to_have_text(token)


async def test_from_the_first_start_to_why_bob_got_no_push(
    installation: Installation, receiver: WebhookReceiver, page: Page
) -> None:
    link = re.search(r"http://\S+(/link\?token=\S+)", installation.output().read_text())
    assert link is not None
    await check_pages(page, ["/log-in", link[1], "/link"])
    await page.goto(link[1])
    await page.get_by_label("New password").fill(PASSWORD)
    await page.get_by_label("Repeat the password").fill(PASSWORD)
    await page.get_by_role("button", name="Set password and log in").click()
    await page.get_by_role("link", name="Not now").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    other_tab = await page.context.new_page()
    await other_tab.goto("/apps")
    await other_tab.get_by_role("button", name="Log out").click()
    await expect(other_tab.get_by_text("You are logged out.")).to_be_visible()
    await other_tab.close()
    await expect(page).to_have_url(re.compile("/log-in"))
    await page.reload()  # the log-out may have replaced the cookie of the form that the page led to
    await page.get_by_label("Name").fill("admin")
    await page.get_by_label("Password").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("The name or the password is wrong.")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.keyboard.press("Enter")

    await page.get_by_role("link", name="Apps", exact=True).click()
    await page.get_by_role("link", name="Register an app").click()
    await page.get_by_label("Name").fill("News")
    await page.get_by_label("Package").fill("org.example.news")
    await page.get_by_role("button", name="Register").click()
    await expect(page.get_by_role("heading", name="News")).to_be_visible()
    secret = await page.get_by_label("Secret key", exact=True).inner_text()
    assert re.fullmatch(r"\w{64}", secret)
    appkey = page.url.rpartition("/")[2]
    await page.reload()
    await expect(page.get_by_text(secret)).to_have_count(0)

    server = AppServer(installation.v2_url)
    await receiver.start()
    await add_a_webhook(page, appkey, receiver)
    await use_a_virtual_phone(page, server, AppCredentials(appkey, secret))
    await check_pages(page, await read_its_requests(page, appkey, receiver))
    await receiver.stop()
    alice, bob = (VirtualDevice(installation.gateway_url, appkey) for _ in range(2))
    for device, alias in ((alice, "alice"), (bob, "bob")):
        await device.connect()
        await device.set_alias(alias)
    await alice.add_stags(["news"])
    push = {"sendTo": {"appkey": {"android": appkey}, "userScope": 6, "stag": [["news"]]}, "msgStyle": STORM}
    msgid = (await server.push(push, secret))["id"]
    while (event := await alice.events.get()).get("msgid") != msgid:
        pass
    assert event["content"] == "Stay inside"

    await page.get_by_role("link", name="Pushes").click()
    await page.get_by_role("link", name=str(msgid)).click()
    await expect(page.get_by_role("heading", name="Storm")).to_be_visible()
    clicked = page.get_by_role("listitem").filter(has_text="Clicked")
    await expect(clicked).to_contain_text("0 0%")
    alice.report("clicked", msgid)
    await expect(clicked).to_contain_text("1 100%")
    await page.get_by_role("link", name="Overview").click()
    await page.get_by_label("App").select_option("News")
    await page.get_by_label("Alias or token").fill("bob")
    await page.get_by_role("button", name="Explain").click()
    await page.get_by_role("link", name=str(msgid)).click()
    words = 'Not in the audience: the push was for string tag "news", and the device had no string tags.'
    await expect(page.get_by_text(words)).to_be_visible()
    sent = await send_a_push(page, appkey)
    while (event := await alice.events.get()).get("msgid") != sent:
        pass
    assert (event["content"], event["click"]) == (
        "Go upstairs now",
        {"action": 2, "param": "https://example.org/storm"},
    )
    await review_a_broadcast(page, appkey, sent)
    await send_with_the_keyboard(page)
    await explain_with_the_keyboard(page, msgid, words)
    await check_pages(page, [""])
    await alice.close()
    await bob.close()
    await server.close()

    pushes = ["/pushes", f"/apps/{appkey}/pushes/{msgid}"]
    devices = ["/devices", f"/apps/{appkey}/device?name=alice", f"/apps/{appkey}/device?name=nobody"]
    why = ["/why", *(f"/apps/{appkey}/why?name={asked}" for asked in ("bob", f"alice&push={msgid}", "alice&push=7"))]
    app_paths = [f"/apps/{appkey}", f"/apps/{appkey}/secret", f"/apps/{appkey}/phone"]
    account_paths = ["/account", "/account/password", "/account/second-factor"]
    await check_pages(page, ["/", "/apps", "/apps/new", *app_paths, *account_paths, "/no/such/page"])
    sending = ["/send", f"/apps/{appkey}/send", f"/apps/{appkey}/send?copy={sent}", "/drafts"]
    await check_pages(page, [*pushes, *devices, *why, *sending])
    await page.goto("/")
    team_paths, invitation = await make_a_team(page, appkey)
    await check_pages(page, team_paths)
    await check_pages(page, await submit_a_broadcast(page, appkey))
    await open_draft(page, "To everybody")
    await decide_as_a_second_person(page, invitation, PASSWORD, appkey)
