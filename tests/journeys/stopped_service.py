"""A service with a history, stopped, so that its states can be replayed."""

import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from carillon.roles import REPLAYABLE
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from tests.journeys.test_push import message, shown

IOS_TOKEN = "ab" * 32
Digests = dict[str, str]


class StoppedService:
    """A service that ran twice and is stopped, with the digests of its states after the first and the second run."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.app = AppCredentials("", "")
        self.then = datetime.now(UTC)
        self.digests_then: Digests = {}
        self.digests: Digests = {}

    def states(self) -> Digests:
        """Return the digests of all roles; each state must equal one rebuilt from the log."""
        with ThreadPoolExecutor() as at_once:
            texts = at_once.map(
                lambda role: self.installation.carillon("replay", role, "--verify", "--json"), REPLAYABLE
            )
            answers = [json.loads(text) for text in texts]
        assert all(answer["equal"] for answer in answers), answers
        return {answer["role"]: answer["live"] for answer in answers}

    def copy(self, to: Path) -> Installation:
        """Return another installation on a copy of the data."""
        shutil.copytree(self.installation.data, to, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        copy = Installation(to, None)
        copy.env["CARILLON_APNS_URL"] = self.installation.env["CARILLON_APNS_URL"]
        return copy


class UnavailableApns:
    """A port that accepts connections, counts and closes them: pushes to it stay pending."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(0)
        self.url = f"https://127.0.0.1:{self.server.getsockname()[1]}"

    def new_connections(self) -> int:
        """Return how many connections arrived since the last call."""
        count = 0
        while True:
            try:
                self.server.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1


async def write_history(service: StoppedService, run: int) -> None:
    """Create a user; register and change devices; send pushes of every kind, some received, pending or cancelled."""
    installation = service.installation
    app, ios = installation.create_app(), installation.create_app("ios")
    installation.give_key(ios)
    installation.carillon("user", "add", f"user{run}", "--administrator")
    server = AppServer(installation.v2_url)
    online, offline = (VirtualDevice(installation.gateway_url, app.appkey) for _ in range(2))
    for device in (online, offline):
        await device.connect()
        assert (await device.request({"type": "set_alias", "alias": f"alice{run}"}))["type"] == "ok"
        assert (await device.request({"type": "add_stags", "stags": ["news"]}))["type"] == "ok"
        device.send({"type": "activity", "event": "open"})
    await offline.close()
    hello = {"type": "hello", "appkey": ios.appkey, "token": IOS_TOKEN}
    assert (await server.device_request(hello))["type"] == "welcome"
    later = {"timed": 2, "send_time_interval": 3600}
    sent = [
        await server.push(message(app, 1, "everyone"), app.secret_key),
        await server.push(message(app, 4, "alias", alias=[f"alice{run}"]), app.secret_key),
        await server.push(message(app, 6, "tag", stag=[["news"]]), app.secret_key),
        await server.push(message(app, 5, "token", token={"android": online.token}), app.secret_key),
    ]
    assert [answer["result"] for answer in sent] == [0] * len(sent)
    for _ in sent:
        await shown(online)
    assert (await server.push(message(app, 3, "later", later, alias=[f"alice{run}"]), app.secret_key))["result"] == 0
    to_ios = {
        "sendTo": {"appkey": {"ios": ios.appkey}, "userScope": 2},
        "msgStyle": {"basic": {"content": "Hello iPhone", "is_notif": 1}},
    }
    assert (await server.push(to_ios, ios.secret_key))["result"] == 0
    android = AppServer(installation.android_url)
    cancel = {"appkey": app.appkey, "msgid": sent[0]["id"]}
    assert (await android.call("DELETE", "/push", cancel, app.secret_key))["result"] == 0
    if run and service.app.appkey:
        again = await server.push(message(service.app, 1, "to the first app"), service.app.secret_key)
        assert again["result"] == 0
    service.app = app
    for each in (online, server, android):
        await each.close()
