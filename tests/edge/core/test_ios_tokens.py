"""iOS tokens in every spelling: they are lower-cased where they enter, and devices of older logs are still found."""

import json
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import FindDevicesRequest, RevokeDeviceKeyRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from testkit.apns.tokens import ios_token
from testkit.edge.http_device import HttpDevice
from testkit.edge.legacy_client import LegacyClient
from testkit.edge.role import EdgeInstallation
from testkit.edge.sent_pushes import targets
from testkit.edge.v2_bodies import push_to

LOWER = ios_token("a device")
UPPER = LOWER.upper()
MIXED = LOWER[:32] + UPPER[32:]
SPELLINGS = [LOWER, UPPER, MIXED, f"<{' '.join(LOWER[at : at + 8] for at in range(0, 64, 8))}>"]
NO_TOKEN = "t" * 64


async def registered(installation: EdgeInstallation, app: App) -> list[str]:
    """Return the spellings under which the app has devices."""
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    names = [LOWER, UPPER, MIXED]
    found = await registry.FindDevices(FindDevicesRequest(appkey=app.appkey, tokens=names))
    return [name for name, number in zip(names, found.numbers_plus_one, strict=True) if number]


async def frame(installation: EdgeInstallation, app: App, kind: str, token: str, **fields: Any) -> dict[str, Any]:
    content = {"type": kind, "appkey": app.appkey, "token": token, **fields}
    return await installation.post(json.dumps(content).encode(), "/device/v1")


async def pushes(installation: EdgeInstallation, app: App, token: str) -> list[dict[str, Any]]:
    """Push to the token in every way that names it."""
    legacy = LegacyClient(installation)
    return [
        await legacy.ios(app, message="m", token=token),
        await legacy.ios(app, message="m", token=[token]),
        await installation.push(push_to(None, 5, ios=app.appkey, token={"ios": token}), app.appkey),
        await installation.push(push_to(None, 5, ios=[app.appkey], token={"ios": {app.appkey: [token]}}), app.appkey),
    ]


@pytest.mark.parametrize("first", SPELLINGS)
async def test_every_spelling_names_the_same_device(installation: EdgeInstallation, first: str) -> None:
    app, legacy = await installation.app(PLATFORM_IOS), LegacyClient(installation)
    assert (await legacy.ios(app, "/register", token=first))["result"] == 0
    assert await registered(installation, app) == [LOWER]
    key = (await HttpDevice(installation, app, first).prove_possession())["key"]
    for token in SPELLINGS:
        welcome = await frame(installation, app, "hello", token, key=key)
        assert (welcome["token"], welcome["new"]) == (LOWER, False)
        assert (await frame(installation, app, "get_device", token, key=key, id=1))["type"] == "ok"
        assert [answer["result"] for answer in await pushes(installation, app, token)] == [0] * 4
    assert len({push.audience.devices.numbers for push in (await installation.sent())[1:]}) == 1
    assert (await legacy.ios(app, "/register", "DELETE", token=SPELLINGS[-1]))["result"] == 0
    assert await registered(installation, app) == []


@pytest.mark.parametrize("stored", [UPPER, MIXED])
async def test_a_device_of_an_older_log_keeps_its_spelling_and_is_found(
    installation: EdgeInstallation, stored: str
) -> None:
    """Registered before tokens were lower-cased, and never registered a second time."""
    app, legacy = await installation.app(PLATFORM_IOS), LegacyClient(installation)
    await installation.device(app, stored)
    key = (await HttpDevice(installation, app, stored).prove_possession())["key"]
    spellings = SPELLINGS if stored == UPPER else [MIXED]
    for token in spellings:
        assert (await legacy.ios(app, "/register", token=token))["result"] == 0
        assert await frame(installation, app, "set_alias", token, key=key, alias="alice") == {"type": "ok"}
        if stored == UPPER:
            assert (await frame(installation, app, "hello", token, key=key))["token"] == UPPER
            assert [answer["result"] for answer in await pushes(installation, app, token)] == [0] * 4
        named = {"appkey": app.appkey, "action": "stag"}
        added = await installation.call("POST", "/v2/device", {**named, "params": {token: ["x"]}}, app.appkey)
        assert added["detailsinfo"] == [{"token": token, "result": 0, "desc": "add token done"}]
        found = await installation.call("POST", "/v2/deviceinfo", {**named, "params": [token]}, app.appkey)
        assert (found["detailsinfo"][0]["token"], found["detailsinfo"][0]["infolist"]) == (token, ["x"])
    assert await registered(installation, app) == [stored]
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=app.appkey, token=spellings[-1]))
    assert await registered(installation, app) == []


async def test_anything_else_is_refused_wherever_a_token_enters(installation: EdgeInstallation) -> None:
    app, legacy = await installation.app(PLATFORM_IOS), LegacyClient(installation)
    named = {"appkey": app.appkey, "action": "stag"}
    answers = [
        await legacy.ios(app, message="m", token=NO_TOKEN),
        await installation.push(push_to(None, 5, ios=app.appkey, token={"ios": NO_TOKEN}), app.appkey),
        await legacy.ios(app, "/register", token=NO_TOKEN),
        await legacy.ios(app, "/register", "DELETE", token=NO_TOKEN),
        await frame(installation, app, "hello", NO_TOKEN),
        await frame(installation, app, "get_device", NO_TOKEN, key="k"),
    ]
    places = ["token", "sendTo.token.ios", "token", "token", "token", "token"]
    for answer, place in zip(answers, places, strict=True):
        assert answer.get("result", answer.get("code")) == 400, answer
        assert answer["desc"] == f"input error: {place} is no iOS token: it must have 64 to 200 hexadecimal digits"
    assert not await installation.sent()
    # An entry of a list fails alone.
    assert [answer["result"] for answer in (await pushes(installation, app, NO_TOKEN))[1::2]] == [0, 0]
    await installation.device(app, LOWER)
    for bad in (NO_TOKEN, "(null)", "", "{length = 32, bytes = 0xab00 ... 00 }", "abcd", LOWER + "\n"):
        for method in ("POST", "DELETE"):
            body = {**named, "params": {LOWER: ["x"], bad: ["x"]}}
            told = await installation.call(method, "/v2/device", body, app.appkey)
            assert [entry["result"] for entry in told["detailsinfo"]] == [0, 401]
        told = await installation.call("POST", "/v2/deviceinfo", {**named, "params": [LOWER, bad]}, app.appkey)
        assert [entry["result"] for entry in told["detailsinfo"]] == [0, 401]
        assert (await legacy.ios(app, message="m", token=[LOWER, bad]))["result"] == 0
        assert len(targets((await installation.sent())[-1].audience.devices)) == 1


async def test_tokens_of_android_apps_are_left_as_they_are(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "T<1> a")
    answer = await installation.push(push_to(app, 5, token={"android": ["T<1> a", "t1a"]}), app.appkey)
    assert [failed["pos"] for failed in answer["details"]] == [1]
