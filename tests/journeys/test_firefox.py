"""A real Firefox: what was sent while it was stopped is shown once, and the audit has its reports."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testkit.delivery.mozilla import DECRYPTED, NOT_DECRYPTED, MozillaPushService, running_firefox
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.repository import ROOT
from testkit.services import running_services
from testkit.waiting import until_holds
from tests.contract.sdk.site import Site
from tests.journeys.test_push import audited, message

HERE = Path(__file__).parent / "firefox"
LIMIT_S = 240


class FirefoxSite:
    """A site whose page is a device of the app; `shown`: how often its worker has shown each content."""

    def __init__(self, directory: Path) -> None:
        self.shown: Counter[str] = Counter()
        self.tags: set[str] = set()
        self.tokens: list[str] = []
        """The device's token, once for each time that the page has subscribed."""

        self.failures: list[str] = []
        directory.mkdir(exist_ok=True)
        self._settings = directory / "settings.json"
        files = {
            "/": (HERE / "page.html", "text/html"),
            "/worker.js": (HERE / "worker.js", "text/javascript"),
            "/carillon-webpush.js": (ROOT / "sdk" / "carillon-webpush.js", "text/javascript"),
        }
        self._files = files
        self._site = Site(files)
        self.url = self._site.url.replace("127.0.0.1", "localhost")
        self._reading = asyncio.create_task(self._read())

    def begin(self, installation: Installation, app: AppCredentials) -> None:
        """Let the page subscribe, now and whenever it is loaded."""
        self._settings.write_text(json.dumps({"url": f"{installation.v2_url}/device/v1", "appkey": app.appkey}))
        self._files["/settings.json"] = (self._settings, "application/json")

    async def subscribed(self, times: int = 1) -> str:
        """Return the device's token once its page has subscribed so many times."""
        try:
            await until_holds(lambda: len(self.tokens) >= times, LIMIT_S)
        except TimeoutError:
            pytest.fail(f"the page has not subscribed: {self.failures[-3:]}")
        assert len(set(self.tokens)) == 1
        return self.tokens[0]

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        self._site.close()

    async def _read(self) -> None:
        while True:
            match await self._site.reports.get():
                case {"shown": shown}:
                    self.shown[shown["body"]] += 1
                    self.tags.add(shown["tag"])
                case {"subscribed": subscribed}:
                    self.tokens.append(subscribed["token"])
                case {"failed": error}:
                    self.failures.append(error)


@pytest.fixture
async def push_service() -> AsyncIterator[MozillaPushService]:
    service = MozillaPushService()
    async with running_services([service]):
        yield service


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[FirefoxSite]:
    site = FirefoxSite(tmp_path)
    yield site
    await site.close()


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_what_was_sent_while_firefox_was_stopped_is_shown_once(
    tmp_path: Path, push_service: MozillaPushService, site: FirefoxSite
) -> None:
    """The process is killed meanwhile. Firefox judges the encryption too: it refuses a message with a changed bit."""
    installation = Installation(tmp_path / "data", None)
    installation.env |= {"CARILLON_WEBPUSH": "internet", "CARILLON_CHANNEL_GRACE_S": "5"}
    profile = tmp_path / "profile"
    server = AppServer(installation.v2_url)
    try:
        await asyncio.to_thread(installation.start)
        app = await asyncio.to_thread(installation.create_app)
        await asyncio.to_thread(
            installation.carillon, "app", "set", app.appkey, "--webpush", "new",
            "--webpush-contact", "mailto:push@example.org", "--webpush-hosts", push_service.authority,
            "--web-origins", site.url.rstrip("/"),
        )  # fmt: skip

        async def send(content: str) -> int:
            answer = await server.push(message(app, 5, content, token={"android": token}), app.secret_key)
            return int(answer["id"])

        async with running_firefox(profile, push_service, site.url):
            await asyncio.wait_for(push_service.has_client.wait(), LIMIT_S)
            site.begin(installation, app)
            token = await site.subscribed()
            await send("while it runs")
            await until_holds(lambda: site.shown == {"while it runs": 1}, LIMIT_S)
            await until_holds(lambda: push_service.codes == [DECRYPTED], LIMIT_S)
        first = await send("while it is stopped")
        await until_holds(lambda: push_service.kept_count == 1, LIMIT_S)
        await asyncio.to_thread(installation.kill)
        await asyncio.to_thread(installation.start)
        await send("after a kill")
        await until_holds(lambda: push_service.kept_count == 2, LIMIT_S)
        assert site.shown == {"while it runs": 1}

        async with running_firefox(profile, push_service, site.url):
            await until_holds(lambda: len(site.shown) == 3, LIMIT_S)
            report = await audited(installation, first, "handed_over", "received", "shown")
            counts = {entry["event"]: int(entry["count"]) for entry in report["timeline"]}
            assert (counts["handed_over"], counts["received"], counts["shown"]) == (1, 1, 1)
            push_service.damages_next = True
            await send("damaged")
            await until_holds(lambda: NOT_DECRYPTED in push_service.codes, LIMIT_S)
            last = await send("the last")
            await until_holds(lambda: "the last" in site.shown, LIMIT_S)
        assert set(site.shown) == {"while it runs", "while it is stopped", "after a kill", "the last"}
        assert set(site.shown.values()) == {1}
        assert f"carillon-{last}" in site.tags
        await asyncio.to_thread(installation.stop)
    finally:
        await server.close()
        installation.close()
