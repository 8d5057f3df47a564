"""POST /v2/errortoken: iOS tokens that Apple reported as invalid."""

from typing import Any

import pytest

import edge.v2.devices
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice, RemoveDevice
from testkit.edge.role import EdgeInstallation


async def remove(installation: EdgeInstallation, app: App, token: str, reason: str) -> None:
    installation.clock.move(1)
    await installation.command(app.appkey, token, DeviceCommand(remove=RemoveDevice(reason=reason)))


async def invalid_tokens(installation: EdgeInstallation, appkey: Any, *appkeys: str) -> dict[str, Any]:
    return await installation.call("POST", "/v2/errortoken", {"appkey": appkey}, *appkeys)


async def test_invalid_tokens_of_several_apps_newest_first(installation: EdgeInstallation) -> None:
    first, second = await installation.app(PLATFORM_IOS), await installation.app(PLATFORM_IOS)
    keys = [first.appkey, second.appkey]
    for token in ("a", "b", "left", "well"):
        await installation.device(first, token)
    assert await invalid_tokens(installation, first.appkey, first.appkey) == {
        "result": 0,
        "desc": "ok",
        "data": {first.appkey: []},
    }
    await remove(installation, first, "b", "BadDeviceToken")
    await remove(installation, first, "left", "unregistered")
    await remove(installation, first, "a", "Unregistered")
    answer = await invalid_tokens(installation, keys, *keys)
    assert answer == {"result": 0, "desc": "ok", "data": {first.appkey: ["a", "b"], second.appkey: []}}
    await installation.command(first.appkey, "b", DeviceCommand(register=RegisterDevice(platform=PLATFORM_IOS)))
    assert (await invalid_tokens(installation, [first.appkey], first.appkey))["data"] == {first.appkey: ["a"]}


async def test_lists_longer_than_a_page_and_longer_than_the_limit(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge.v2.devices, "_PAGE", 3)
    app = await installation.app(PLATFORM_IOS)
    for number in range(7):
        await installation.device(app, f"t{number}")
        await remove(installation, app, f"t{number}", "Unregistered")
    wanted = [f"t{number}" for number in range(7)][::-1]
    for limit, found in ((100, wanted), (7, wanted), (5, wanted[:5])):
        monkeypatch.setattr(edge.v2.devices, "MAX_INVALID_TOKENS", limit)
        assert (await invalid_tokens(installation, app.appkey, app.appkey))["data"] == {app.appkey: found}


async def test_an_android_app_is_refused(installation: EdgeInstallation) -> None:
    app = await installation.app()
    assert await invalid_tokens(installation, app.appkey, app.appkey) == {"result": 401, "desc": "sign not correct"}


APPKEYS: list[tuple[Any, str]] = [
    (None, "appkey is missing"),
    ([], "appkey must be a string or a list of strings"),
    ({"ios": "1"}, "appkey must be a string or a list of strings"),
    (False, "appkey must be a string or a list of strings"),
    (["1", 1], "appkey names an app twice"),
    ([[]], "appkey must be a string or a list of strings"),
]


async def test_rules_of_the_appkey(installation: EdgeInstallation) -> None:
    for appkey, problem in APPKEYS:
        assert await invalid_tokens(installation, appkey) == {"result": 400, "desc": f"input error: {problem}"}
