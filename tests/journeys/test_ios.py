"""iOS from end to end: virtual devices behind the APNs simulator, and an app's own key with a simulator outside."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from services.apns_simulator.keys import public_key
from services.domain.topics import device_key
from services.log.topics import partition_of
from testkit.apns.keys import KEY_ID, TEAM_ID, canaries, files_containing, pem
from testkit.delivery.scripted_tokens import prefix_of
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import CARILLON, Installation
from testkit.waiting import until
from tests.journeys.conftest import SHARDS_BEFORE_RELEASES

BOUND_S = 60
TOKEN = "ab" * 32


def to_all(app: AppCredentials, content: str) -> dict[str, Any]:
    return {
        "sendTo": {"appkey": {"ios": app.appkey}, "userScope": 2},
        "msgStyle": {"basic": {"content": content, "is_notif": 1}, "ios": {"badge": 3}},
    }


async def start(installation: Installation, *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, CARILLON, *arguments, env=installation.env, cwd=installation.data, stdout=PIPE, stderr=PIPE
    )


async def event(program: Process) -> dict[str, Any]:
    """Return the next JSON object that the program prints."""
    assert program.stdout is not None
    line = await asyncio.wait_for(program.stdout.readline(), BOUND_S)
    found: dict[str, Any] = json.loads(line)
    return found


def shard_of(app: AppCredentials, token: str) -> int:
    return partition_of(device_key(app.appkey, token), 8) % 2


@SHARDS_BEFORE_RELEASES
async def test_a_virtual_iphone_receives_a_push(carillon: Installation, server: AppServer) -> None:
    app = carillon.create_app("ios")
    url = f"{carillon.v2_url}/device/v1"
    phone = await start(
        carillon, "device", "run", "--platform", "ios", "--appkey", app.appkey, "--url", url, "--alias", "anna",
        "--opens", "--json",
    )  # fmt: skip
    try:
        welcome, ok = await event(phone), await event(phone)
        assert (welcome["type"], ok["type"]) == ("welcome", "ok")
        assert (await server.push(to_all(app, "你好"), app.secret_key))["result"] == 0
        push, opened = await event(phone), await event(phone)
        assert push["payload"] == {"aps": {"alert": "你好", "badge": 3, "sound": "default"}}
        assert push["headers"]["apns-topic"] == "org.t"
        assert (opened["type"], opened["request"]) == ("ok", "activity")
    finally:
        phone.terminate()
        assert await asyncio.wait_for(phone.wait(), BOUND_S) == 0

    # Of builds for the sandbox, and of the phone's shard: each shard of delivery judges its own devices of an app.
    bad = (prefix_of(400, "BadDeviceToken") + f"{number:02x}" * 29 for number in range(256))
    shard = shard_of(app, welcome["token"])
    for token in islice((token for token in bad if shard_of(app, token) == shard), 5):
        await server.device_request({"type": "hello", "appkey": app.appkey, "token": token})
    assert (await server.push(to_all(app, "nobody else gets it"), app.secret_key))["result"] == 0

    async def wrong() -> list[dict[str, Any]]:
        shown = json.loads(await asyncio.to_thread(carillon.carillon, "app", "show", app.appkey, "--json"))
        found: list[dict[str, Any]] = shown["apple"]
        return found

    (problem,) = await until(wrong, BOUND_S)
    assert (problem["kind"], problem["refused"], problem["reason"]) == ("bad_tokens", 5, "BadDeviceToken")
    said = " ".join(carillon.carillon("app", "show", app.appkey).split())
    assert "Apple has refused the tokens of 5 of 7 pushes (BadDeviceToken)" in said
    assert "simulators apns: what they accept does not leave this installation" in said
    assert f"carillon app set {app.appkey} --apns-environment" in said


@SHARDS_BEFORE_RELEASES
async def test_a_virtual_iphone_reports_what_it_gets_and_the_audit_says_so(
    carillon: Installation, server: AppServer
) -> None:
    app = carillon.create_app("ios")
    carillon.carillon("app", "set", app.appkey, "--apns-reports", "on")
    url = f"{carillon.v2_url}/device/v1"
    phone = await start(
        carillon, "device", "run", "--platform", "ios", "--appkey", app.appkey, "--url", url, "--opens", "--json"
    )
    try:
        welcome = await event(phone)
        identity = {name: welcome[name] for name in ("token", "key")} | {"appkey": app.appkey}

        async def sent() -> dict[str, Any] | None:
            """Push until the edge has applied the setting, and return what the phone gets with its message id."""
            assert (await server.push(to_all(app, "hello"), app.secret_key))["result"] == 0
            push = await event(phone)
            if "carillon" in push["payload"]:
                return push
            assert (await event(phone))["request"] == "activity"
            return None

        push = await until(sent, BOUND_S)
        msgid = push["payload"]["carillon"]["msgid"]
        assert push["headers"]["apns-collapse-id"] == str(msgid)
        assert push["payload"]["aps"] == {"alert": "hello", "badge": 3, "sound": "default", "mutable-content": 1}
        answers = [await event(phone) for _ in range(4)]
        assert [answer["request"] for answer in answers] == ["ack", "report", "report", "activity"]
        assert {answer["type"] for answer in answers} == {"ok"}
        never_sent = {"type": "report", "event": "clicked", "msgid": msgid + 1000, **identity}
        assert (await server.device_request(never_sent))["type"] == "ok"
    finally:
        phone.terminate()
        assert await asyncio.wait_for(phone.wait(), BOUND_S) == 0

    async def audited() -> dict[str, Any] | None:
        named = ("audit", "push", str(msgid), "--device", welcome["token"], "--json")
        said = await asyncio.to_thread(carillon.carillon, *named, check=False)
        report: dict[str, Any] = json.loads(said) if said.strip() else {"device": {"timeline": []}}
        return report if "clicked" in {entry["event"] for entry in report["device"]["timeline"]} else None

    audit = await until(audited, BOUND_S)
    events = [entry["event"] for entry in audit["device"]["timeline"]]
    assert set(events) >= {"sent", "received", "shown", "clicked"}
    assert {state["state"]: state["devices"] for state in audit["states"]} == {"clicked": 1}


async def run_phone(carillon: Installation, app: AppCredentials, *options: str) -> Process:
    """Start the virtual iPhone with the token TOKEN, which keeps no key."""
    url = f"{carillon.v2_url}/device/v1"
    named = ("--platform", "ios", "--appkey", app.appkey, "--url", url, "--token", TOKEN)
    return await start(carillon, "device", "run", *named, *options, "--json")


@pytest.mark.long
@SHARDS_BEFORE_RELEASES
async def test_an_iphone_that_lost_its_key_proves_its_token_and_a_revoked_one_waits_for_the_apps_server(
    carillon: Installation, server: AppServer
) -> None:
    app = carillon.create_app("ios")
    phone = await run_phone(carillon, app, "--alias", "anna")
    key = (await event(phone))["key"]
    assert (await event(phone))["type"] == "ok"
    phone.terminate()
    assert await asyncio.wait_for(phone.wait(), BOUND_S) == 0

    phone = await run_phone(carillon, app)
    try:
        refused, code, welcome = [await event(phone) for _ in range(3)]
        assert [refused["reason"], code["type"], welcome["type"], welcome["new"]] == [
            "possession",
            "code",
            "welcome",
            False,
        ]
        assert welcome["key"] != key
        body = to_all(app, "still anna")
        body["sendTo"] |= {"userScope": 3, "alias": ["anna"]}
        assert (await server.push(body, app.secret_key))["result"] == 0
        assert (await event(phone))["payload"]["aps"]["alert"] == "still anna"
    finally:
        phone.terminate()
        assert await asyncio.wait_for(phone.wait(), BOUND_S) == 0
    old_key = await server.device_request({"type": "hello", "appkey": app.appkey, "token": TOKEN, "key": key})
    assert old_key["reason"] == "possession"
    msgid = code["headers"]["apns-collapse-id"]

    async def audited() -> dict[str, Any] | None:
        said = await asyncio.to_thread(carillon.carillon, "audit", "push", msgid, "--json", check=False)
        report: dict[str, Any] = json.loads(said) if said.strip() else {"timeline": []}
        return report if "sent" in {entry["event"] for entry in report["timeline"]} else None

    audit = await until(audited, BOUND_S)
    assert audit["kind"] == "unicast"
    assert "possession code" in audit["request_json"]

    carillon.carillon("device", "revoke", app.appkey, TOKEN)
    for identity in ({}, {"key": welcome["key"]}):
        revoked = await server.device_request({"type": "hello", "appkey": app.appkey, "token": TOKEN, **identity})
        assert revoked["reason"] == "revoked"
    registered = AppServer(carillon.ios_url)
    who = {"appkey": app.appkey, "token": TOKEN}
    assert (await registered.call("POST", "/register", who, app.secret_key))["result"] == 0
    await registered.close()
    again = await server.device_request({"type": "hello", "appkey": app.appkey, "token": TOKEN})
    assert again["reason"] == "possession"


@pytest.fixture
async def signing(tmp_path: Path) -> AsyncIterator[tuple[Installation, Process, str]]:
    """Yield an installation, an APNs simulator in a process of its own that knows one key, and that key as PEM text."""
    installation, text = Installation(tmp_path / "data", None), pem()
    installation.data.mkdir()
    known, authority = tmp_path / "public.pem", tmp_path / "authority.pem"
    known.write_text(public_key(text))
    options = ("--port", "0", "--authority", str(authority), "--key", TEAM_ID, KEY_ID, str(known), "--json")
    apple = await start(installation, "apns-simulator", *options)
    assert apple.stderr is not None
    url = (await asyncio.wait_for(apple.stderr.readline(), BOUND_S)).decode().split()[-1]
    installation.env |= {"CARILLON_APNS_URL": url, "CARILLON_APNS_AUTHORITY": str(authority)}
    try:
        yield installation, apple, text
    finally:
        installation.close()
        apple.terminate()
        await apple.wait()


@pytest.mark.long
async def test_an_apps_own_key_signs_its_pushes_and_is_never_stored_in_the_clear(
    signing: tuple[Installation, Process, str], tmp_path: Path
) -> None:
    installation, apple, text = signing
    installation.start()
    app = installation.create_app("ios")
    server = AppServer(installation.v2_url)
    await server.device_request({"type": "hello", "appkey": app.appkey, "token": TOKEN})
    assert (await server.push(to_all(app, "early"), app.secret_key))["result"] == 0
    file = tmp_path / "AuthKey.p8"
    file.write_text(text)
    own = ("--apns-key", str(file), "--apns-key-id", KEY_ID, "--apns-team", TEAM_ID)
    said = installation.carillon("app", "set", app.appkey, *own, "--apns-topic", "org.t.phone", "--json")

    first = await event(apple)
    assert (first["token"], first["status"], first["payload"]["aps"]["alert"]) == (TOKEN, 200, "early")
    assert first["headers"]["apns-topic"] == "org.t.phone"
    installation.stop()
    installation.start()
    assert (await server.push(to_all(app, "late"), app.secret_key))["result"] == 0
    assert (await event(apple))["payload"]["aps"]["alert"] == "late"
    await server.close()
    installation.stop()

    words = canaries(text)
    assert files_containing(installation.data, words) == []
    assert not [word for word in words if word.decode() in said]
