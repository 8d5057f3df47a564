"""The service worker of the JavaScript SDK in a real browser, with the real edge on another origin."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, App
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest, WebOrigins
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.errors import UnavailableError
from testkit.edge.browser import running_browser
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.repository import ROOT
from testkit.waiting import until, until_holds
from tests.contract.sdk.site import Site

HERE = Path(__file__).parent
FILES = {
    "/": (HERE / "worker.html", "text/html"),
    "/worker.js": (HERE / "worker.js", "text/javascript"),
    "/carillon-webpush.js": (ROOT / "sdk" / "carillon-webpush.js", "text/javascript"),
}
RECEIVED, SHOWN, CLICKED, DISMISSED = (
    OutcomeKind.OUTCOME_KIND_RECEIVED,
    OutcomeKind.OUTCOME_KIND_SHOWN,
    OutcomeKind.OUTCOME_KIND_CLICKED,
    OutcomeKind.OUTCOME_KIND_DISMISSED,
)
# A browser without a push service of its vendor cannot subscribe, so the page has a subscription of the test's.
SUBSCRIBE = """async ([url, appkey]) => {
    const registration = await navigator.serviceWorker.ready;
    const subscription = {
        endpoint: "https://push.example.org/1", options: { applicationServerKey: null },
        toJSON: () => ({ endpoint: "https://push.example.org/1", keys: { p256dh: "k", auth: "a" } }),
    };
    const asked = [];
    Object.defineProperty(registration, "pushManager", { value: {
        getSubscription: async () => null,
        subscribe: async (options) => (asked.push(options), subscription),
    } });
    const error = await CarillonWebPush.subscribe({ url, appkey, registration }).catch((error) => error);
    return { asked, code: error?.code };
}"""
SHOWN_NOW = """async () => (await (await navigator.serviceWorker.ready).getNotifications())
    .map(({ title, body, tag }) => ({ title, body, tag }))"""


class WorkerInBrowser:
    """A page whose service worker has the SDK's file, and the pushes that the test brings to the worker."""

    def __init__(self, page: Page, session: CDPSession, origin: str) -> None:
        self.page = page
        self._session = session
        self._origin = origin
        self._registrations: list[str] = []
        session.on("ServiceWorker.workerRegistrationUpdated", self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self._registrations += [each["registrationId"] for each in event["registrations"]]

    async def deliver(self, push: dict[str, Any] | str) -> None:
        """Bring a push to the worker, as the browser does when its push service has one."""
        await until_holds(lambda: bool(self._registrations))
        await self._session.send(
            "ServiceWorker.deliverPushMessage",
            {
                "origin": self._origin,
                "registrationId": self._registrations[-1],
                "data": push if isinstance(push, str) else json.dumps(push),
            },
        )

    async def notifications(self) -> Any:
        return await self.page.evaluate(SHOWN_NOW)

    async def until_shown(self, body: str) -> None:
        async def is_shown() -> bool:
            return body in [each["body"] for each in await self.notifications()]

        await until(is_shown)

    async def in_worker(self, script: str) -> Any:
        return await self.page.context.service_workers[0].evaluate(script)


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[EdgeInstallation]:
    async with edge_installation(tmp_path, BACKENDS) as installation:
        yield installation


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site(FILES)
    yield site
    site.close()


@pytest.fixture
async def app(installation: EdgeInstallation, site: Site) -> App:
    app = await installation.app()
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    change = ChannelChange(channel=CHANNEL_WEBPUSH, fields={"key": "new", "contact": "mailto:push@example.org"})
    origins = WebOrigins(origins=[site.url.rstrip("/").replace("127.0.0.1", "localhost")])
    changed = await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, channels=[change], web_origins=origins))
    await installation.context.apps.refresh()
    return changed.app


@pytest.fixture
async def worker(installation: EdgeInstallation, app: App, site: Site) -> AsyncIterator[WorkerInBrowser]:
    url = site.url.replace("127.0.0.1", "localhost")
    async with running_browser() as browser:
        context = await browser.new_context()
        await context.grant_permissions(["notifications"], origin=url)
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        found = WorkerInBrowser(page, session, url.rstrip("/"))
        await session.send("ServiceWorker.enable")
        await page.goto(url)
        await page.evaluate("navigator.serviceWorker.register('worker.js')")
        subscribed = await page.evaluate(SUBSCRIBE, [f"{installation.http.base_url}/device/v1", app.appkey])
        (asked,) = subscribed["asked"]
        assert asked["userVisibleOnly"] is True
        assert len(asked["applicationServerKey"]) == 87
        yield found


def push(msgid: int, **fields: Any) -> dict[str, Any]:
    frame = {"type": "push", "msgid": msgid, "is_notif": 1, "title": "News", "content": f"number {msgid}"}
    return {**frame, "expires_at": 1, **fields}


async def until_reported(installation: EdgeInstallation, expected: Sequence[tuple[int, int]]) -> None:
    await until_holds(lambda: len(installation.reports.rows) >= len(expected))
    assert [(msgid, kind) for *_, msgid, kind in installation.reports.rows] == list(expected)


async def test_pushes_are_shown_and_reported_once(installation: EdgeInstallation, worker: WorkerInBrowser) -> None:
    """Starting a browser is most of the time of such a test, so it is one."""
    first, again, second = [(1, RECEIVED), (1, SHOWN)], [(1, RECEIVED)], [(2, RECEIVED), (2, SHOWN)]
    installation.reports.error = UnavailableError("away")
    await worker.deliver(push(1))
    await worker.until_shown("number 1")
    assert await worker.notifications() == [{"title": "News", "body": "number 1", "tag": "carillon-1"}]
    assert installation.reports.rows == []
    installation.reports.error = None

    await worker.deliver(push(1, content="again"))
    await until_reported(installation, first + again)
    await worker.deliver("none of Carillon's")
    await worker.deliver(push(2))
    await until_reported(installation, first + again + second)
    assert [each["body"] for each in await worker.notifications()] == ["number 1", "number 2"]
    assert await worker.page.evaluate("CarillonWebPush.isFirst(2)") is False
    assert [await worker.page.evaluate("CarillonWebPush.isFirst(3)") for _ in range(2)] == [True, False]

    await worker.page.evaluate(
        """() => {
            window.told = new Promise((told) =>
                navigator.serviceWorker.addEventListener("message", ({ data }) => told(data)));
            navigator.serviceWorker.startMessages();
        }"""
    )
    await worker.deliver(push(4, is_notif=0, content="for the app"))
    assert await worker.page.evaluate("window.told") == {"type": "carillon-push"}
    taken = await worker.page.evaluate("CarillonWebPush.takePushes()")
    assert [each["content"] for each in taken] == ["for the app"]
    assert await worker.page.evaluate("CarillonWebPush.takePushes()") == []
    assert len(await worker.notifications()) == 2
    await until_reported(installation, [*first, *again, *second, (4, RECEIVED)])


async def test_what_a_click_does(installation: EdgeInstallation, worker: WorkerInBrowser, app: App) -> None:
    await worker.deliver(push(1, click={"action": 2, "param": "https://example.org/news"}))
    await worker.deliver(push(2, click={"action": 2, "param": "javascript:alert(1)"}))
    await worker.deliver(push(3))
    await until_holds(lambda: len(installation.reports.rows) == 6)
    installation.reports.rows.clear()
    # There is no call that clicks, and an event of a script may open nothing: the calls are noted instead.
    opened = await worker.in_worker(
        """async () => {
            const opened = [];
            clients.openWindow = async (url) => opened.push(url);
            WindowClient.prototype.focus = async () => opened.push("focus");
            for (const notification of await registration.getNotifications()) {
                const type = notification.tag === "carillon-3" ? "notificationclose" : "notificationclick";
                self.dispatchEvent(new NotificationEvent(type, { notification }));
            }
            const turn = () => new Promise((next) => setTimeout(next, 5));
            for (let turns = 0; opened.length < 2 && turns < 1000; turns++) await turn();
            return opened;
        }"""
    )
    assert sorted(opened) == ["focus", "https://example.org/news"]
    await until_holds(lambda: len(installation.reports.rows) == 3)
    kinds = {msgid: kind for *_, msgid, kind in installation.reports.rows}
    assert kinds == {1: CLICKED, 2: CLICKED, 3: DISMISSED}
    assert [each["tag"] for each in await worker.notifications()] == ["carillon-3"]

    hello = json.dumps({"type": "hello", "appkey": app.appkey})
    read = "([url, body]) => fetch(url, { method: 'POST', body }).then((answer) => answer.text(), String)"
    asked = [f"{installation.http.base_url}/device/v1", hello]
    assert "welcome" in await worker.page.evaluate(read, asked)
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    origins = WebOrigins(origins=["https://example.org"])
    await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, web_origins=origins))
    await installation.context.apps.refresh()
    assert "Failed to fetch" in await worker.page.evaluate(read, asked)
