"""The virtual phone's page and the service worker with which it may go on without a page."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import GetAppleStateResponse
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, PLATFORM_IOS
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest, WebOrigins
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.process.clock import ManualClock
from testkit.programs import needed
from testkit.repository import ROOT
from tests.console.conftest import OPERATOR, START_MS, ConsoleInstallation, running_console, text_of

SCRIPTS = ("console/static/phone.js", "console/static/phone-subscription.js", "sdk/carillon-webpush.js")
ORIGIN = "https://console.example.org"
GATEWAY_URL, V2_URL = "wss://gateway.example.org/device/v1", "https://push.example.org"


async def give_key(console: ConsoleInstallation, appkey: str) -> None:
    registry = RegistryServiceStub(console.peers.all("registry")[0])
    change = ChannelChange(channel=CHANNEL_WEBPUSH, fields={"key": "new", "contact": "mailto:push@example.org"})
    origins = WebOrigins(origins=[ORIGIN])
    await registry.UpdateApp(UpdateAppRequest(appkey=appkey, channels=[change], web_origins=origins, origin=OPERATOR))
    await console.settle()


async def test_the_phone_may_connect_and_subscribe_and_says_what_is_missing(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    async with running_console(tmp_path, clock, console_gateway_url=GATEWAY_URL, console_v2_url=V2_URL) as console:
        team_id = await console.team("News", sender="sender", manager="administrator")
        appkey = await console.app(team_id=team_id)
        sender, manager = await console.logged_in("sender"), await console.logged_in("manager")
        path = f"/apps/{appkey}/phone"

        without_key = await sender.get(path)
        assert "The app has no key for Web Push" in text_of(without_key)
        assert 'id="subscribe"' not in without_key.text
        assert "Settings of the app" not in text_of(without_key)
        assert "Settings of the app" in text_of(await manager.get(path))

        await give_key(console, appkey)
        page = await sender.get(path)
        policy = page.headers["Content-Security-Policy"]
        assert "; connect-src 'self' wss://gateway.example.org https://push.example.org; " in policy
        assert 'id="subscribe"' in page.text
        assert f'data-requests-url="{V2_URL}/device/v1"' in page.text
        assert f'data-origins="[&#34;{ORIGIN}&#34;]"' in page.text
        assert "A simulator answers" not in page.text

        console.delivery.apple[appkey] = GetAppleStateResponse(simulators=[CHANNEL_WEBPUSH])
        assert "A simulator answers" in (await sender.get(path)).text

        assert f'data-worker="{path}/worker"' in page.text
        worker = await sender.get(f"{path}/worker")
        assert worker.headers["Content-Type"].startswith("text/javascript")
        assert worker.headers["Service-Worker-Allowed"] == path
        assert "; connect-src 'self' https://push.example.org; " in worker.headers["Content-Security-Policy"]
        imported, database = worker.text.splitlines()
        assert database == f'CarillonWebPush.database = "carillon-{appkey}";'
        sdk = await sender.get(imported.removeprefix('importScripts("').removesuffix('");'))
        assert 'worker.addEventListener("push"' in sdk.text

        iphone = await console.app(team_id=team_id, platform=PLATFORM_IOS)
        for missing in (f"/apps/{iphone}/phone", f"/apps/{iphone}/phone/worker"):
            assert (await sender.get(missing)).status_code == 404


def phone_in(directory: Path, **browser: Any) -> Any:
    """Return what the phone's scripts do in such a browser: see tests/console/phone/browser.mjs."""
    for file in (*(ROOT / name for name in SCRIPTS), *(Path(__file__).parent / "phone").iterdir()):
        shutil.copy(file, directory)
    (directory / "package.json").write_text('{"type": "module"}')
    command = [needed("node"), "browser.mjs", json.dumps(browser)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SUBSCRIBING = [
    ["register", "/apps/7/phone/worker", "/apps/7/phone"],
    ["subscribe", "http://v2/device/v1", "new", "https://console/apps/7/phone"],
]


def test_a_phone_is_kept_by_the_browser_while_it_is_subscribed(tmp_path: Path) -> None:
    """The texts of states, the token in localStorage and the one in sessionStorage."""
    found = phone_in(tmp_path)
    assert found["states"] == [
        ["off https://console", None, "new"],
        ["on https://console", "new", None],
        ["off https://console", None, "new"],
    ]
    assert found["calls"] == [*SUBSCRIBING, ["unsubscribe"]]
    assert found["database"] == "carillon-7"

    kept = phone_in(tmp_path, permission="granted", kept="former")
    assert kept["states"] == [["on https://console", "former", None], ["off https://console", None, "former"]]
    assert [call[0] for call in kept["calls"]] == ["register", "subscribe", "unsubscribe"]

    failed = phone_in(tmp_path, error="no push service")
    assert failed["states"][1] == ["failed https://console no push service", "new", None]


@pytest.mark.parametrize(
    ("browser", "state"),
    [
        ({"isSecure": False}, "insecure https://console"),
        ({"hasNoPush": True}, "unsupported https://console"),
        ({"origin": "https://other"}, "origin https://other"),
        ({"permission": "denied"}, "denied https://console"),
        ({"kept": "of another tab", "isHeld": True}, "elsewhere https://console"),
    ],
)
def test_a_phone_that_cannot_subscribe_says_why(tmp_path: Path, browser: dict[str, Any], state: str) -> None:
    found = phone_in(tmp_path, **browser)
    assert found["states"] == [[state, browser.get("kept"), "new"]]
    assert found["calls"] == []


def test_who_does_not_allow_notifications_is_not_subscribed(tmp_path: Path) -> None:
    assert phone_in(tmp_path, asked="denied")["states"][1] == ["denied https://console", None, "new"]
    assert phone_in(tmp_path, asked="default")["states"][1] == ["off https://console", None, "new"]
