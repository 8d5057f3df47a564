"""An APNs token is no secret: who knows only a token reads and changes nothing of its device."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from edge.core.quotas import CODES_PER_S
from edge.v2.device_frames import AGAIN_MS
from protos.push.v1.push_pb2 import KIND_UNICAST
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from protos.registry.v1.registry_pb2 import PauseAppsRequest, RevokeAppKeysRequest, RevokeDeviceKeyRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.device_protocol.possession import LIFETIME_S
from services.domain.registrations import RegistrationLimiter
from services.domain.topics import DEVICE_COMMANDS, PUSH_COMMANDS
from services.log.port import Partition
from testkit.apns.tokens import ios_token
from testkit.edge.http_device import HttpDevice, pushed_codes
from testkit.edge.legacy_client import LegacyClient
from testkit.edge.role import BACKENDS, PARTITIONS, EdgeInstallation, edge_installation
from testkit.edge.sent_pushes import targets
from testkit.edge.v2_bodies import push_to
from testkit.faults.held_removals import hold_removals

TOKEN = ios_token("a device")
UPPER = TOKEN.upper()
STAYS_REVOKED = "unauthorized: the key of this device was revoked; the app's server can register the token again"


@pytest.fixture
async def app(installation: EdgeInstallation) -> App:
    return await installation.app(PLATFORM_IOS)


@pytest.fixture
async def victim(installation: EdgeInstallation, app: App) -> HttpDevice:
    """A device with an alias and tags."""
    device = HttpDevice(installation, app, TOKEN)
    await device.hello(device={"model": "m1"})
    await device.send("set_alias", alias="alice")
    await device.send("add_tags", tags=[7])
    await device.send("add_stags", stags=["vip"])
    return device


async def revoke(installation: EdgeInstallation, app: App, token: str = TOKEN) -> None:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=app.appkey, token=token))
    await installation.context.apps.refresh()


async def commands(installation: EdgeInstallation) -> dict[Partition, int]:
    return dict(await installation.log.ends([Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)]))


def state(device: dict[str, Any]) -> tuple[Any, ...]:
    return device["alias"], device["tags"], device["stags"], device["device"]


THE_VICTIMS = ("alice", [7], ["vip"], {"model": "m1"})


@pytest.mark.parametrize(
    "fields",
    [{}, {"key": "AAAA"}, {"code": "AAAA"}, {"code": "日"}, {"key": "A" * 27, "code": "A" * 27}],
    ids=["no key", "wrong key", "wrong code", "no ASCII", "both wrong"],
)
@pytest.mark.parametrize("spelling", [TOKEN, UPPER])
async def test_a_hello_with_the_token_alone_reads_and_changes_nothing(
    installation: EdgeInstallation, app: App, victim: HttpDevice, spelling: str, fields: dict[str, str]
) -> None:
    before = await commands(installation)
    attacker = HttpDevice(installation, app, spelling)
    refused = await attacker.send("hello", device={"model": "taken"}, **fields)
    assert set(refused) == {"type", "code", "desc", "reason"}
    assert (refused["code"], refused["reason"]) == (401, "possession")
    assert await commands(installation) == before
    assert state(await victim.send("get_device")) == THE_VICTIMS
    assert (await victim.hello())["new"] is False


async def test_the_code_of_a_silent_push_opens_the_device_under_another_key(
    installation: EdgeInstallation, app: App, victim: HttpDevice
) -> None:
    old_key = victim.identity["key"]
    reinstalled = HttpDevice(installation, app, TOKEN)
    welcome = await reinstalled.prove_possession()
    assert (welcome["token"], welcome["new"], welcome["key"] == old_key) == (TOKEN, False, False)
    assert state(await reinstalled.send("get_device")) == THE_VICTIMS
    for kind, more in (("get_device", {}), ("set_alias", {"alias": "x"}), ("activity", {"event": "open"})):
        assert (await victim.send(kind, key=old_key, **more))["code"] == 401, "the former key counts no more"
    assert (await victim.send("hello", key=old_key))["reason"] == "possession"
    (push,) = await installation.sent()
    assert (push.kind, len(targets(push.audience.devices)), push.period_s) == (KIND_UNICAST, 1, 300)
    body = push_to(None, 3, ios=app.appkey, alias="alice")
    assert (await installation.push(body, app.appkey))["desc"] == "send ok"
    assert len(targets((await installation.sent())[-1].audience.devices)) == 1


async def test_the_log_holds_no_code_that_can_be_used(
    installation: EdgeInstallation, app: App, victim: HttpDevice
) -> None:
    await HttpDevice(installation, app, TOKEN).send("hello")
    (code,) = await pushed_codes(installation)
    records = (await installation.log.select({Partition(PUSH_COMMANDS.name, 0): 0}, 100)).records
    assert not [record for record in records if code.encode() in record.value]


async def test_a_code_serves_once_and_for_minutes(installation: EdgeInstallation, app: App, victim: HttpDevice) -> None:
    device = HttpDevice(installation, app, TOKEN)
    await device.prove_possession()
    (first,) = await pushed_codes(installation)
    stranger = HttpDevice(installation, app, TOKEN)
    assert (await stranger.send("hello", code=first))["reason"] == "possession"
    installation.clock.move(AGAIN_MS / 1000)
    assert (await stranger.send("hello"))["reason"] == "possession"
    installation.clock.move(LIFETIME_S)
    late = (await pushed_codes(installation))[-1]
    assert (await stranger.send("hello", code=late))["reason"] == "possession"
    installation.clock.move(LIFETIME_S - 1)
    _, _, fresh = await pushed_codes(installation)
    assert (await stranger.hello(code=fresh))["new"] is False


async def test_the_code_of_another_token_or_app_is_refused(installation: EdgeInstallation, app: App) -> None:
    other_app = await installation.app(PLATFORM_IOS)
    victims = [(app, TOKEN), (app, ios_token("another")), (other_app, TOKEN)]
    for of_app, token in victims:
        await HttpDevice(installation, of_app, token).hello()
    for of_app, token in victims:
        await HttpDevice(installation, of_app, token).send("hello")
    codes = await pushed_codes(installation)
    for place, (of_app, token) in enumerate(victims):
        device = HttpDevice(installation, of_app, token)
        for code in codes[:place] + codes[place + 1 :]:
            assert (await device.send("hello", code=code))["reason"] == "possession"
    for (of_app, token), code in zip(victims, codes, strict=True):
        assert (await HttpDevice(installation, of_app, token).hello(code=code))["new"] is False


async def test_a_token_is_pushed_to_at_most_once_a_minute(
    installation: EdgeInstallation, app: App, victim: HttpDevice
) -> None:
    attacker = HttpDevice(installation, app, TOKEN)
    for _ in range(3):
        assert (await attacker.send("hello"))["reason"] == "possession"
    assert len(await pushed_codes(installation)) == 1
    installation.clock.move(AGAIN_MS / 1000)
    await attacker.send("hello")
    assert len(await pushed_codes(installation)) == 2


async def test_an_app_is_pushed_a_bounded_number_of_codes(
    installation: EdgeInstallation, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [ios_token(f"number {number}") for number in range(CODES_PER_S + 1)]
    for token in tokens:
        await HttpDevice(installation, app, token).hello()
    for token in tokens[:-1]:
        assert (await HttpDevice(installation, app, token).send("hello"))["reason"] == "possession"
    hello = {"type": "hello", "appkey": app.appkey, "token": tokens[-1]}
    refused = await installation.http.post("/device/v1", json=hello)
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, 429, "1")
    installation.clock.move(1)
    assert (await HttpDevice(installation, app, tokens[-1]).send("hello"))["reason"] == "possession"
    assert len(await pushed_codes(installation)) == CODES_PER_S + 1


async def test_wrong_keys_and_codes_are_limited_by_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.v2.app.RegistrationLimiter", lambda _: RegistrationLimiter(per_s=1))
    async with edge_installation(tmp_path, BACKENDS) as installation:
        app = await installation.app(PLATFORM_IOS)
        device = HttpDevice(installation, app, TOKEN)
        await device.hello()
        for number in range(9):
            guess = {"key": f"k{number}"} if number % 2 else {"code": f"c{number}"}
            assert (await HttpDevice(installation, app, TOKEN).send("hello", **guess))["code"] == 401
        for guess in ({"key": "k"}, {"code": "c"}):
            hello = {"type": "hello", "appkey": app.appkey, "token": TOKEN, **guess}
            assert (await installation.http.post("/device/v1", json=hello)).status_code == 429
        assert (await device.hello())["new"] is False


async def test_a_paused_app_pushes_no_code(installation: EdgeInstallation, app: App, victim: HttpDevice) -> None:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.PauseApps(PauseAppsRequest(appkey=app.appkey))
    hello = {"type": "hello", "appkey": app.appkey, "token": TOKEN}
    refused = await installation.http.post("/device/v1", json=hello)
    assert (refused.status_code, refused.json()["code"]) == (403, 403)
    assert (await victim.hello())["new"] is False


async def test_who_registered_a_token_first_loses_it_to_its_phone(installation: EdgeInstallation, app: App) -> None:
    attacker, phone = HttpDevice(installation, app, TOKEN), HttpDevice(installation, app, TOKEN)
    await attacker.hello()
    await phone.prove_possession()
    await phone.send("set_alias", alias="alice")
    assert (await attacker.send("get_device"))["code"] == 401
    assert (await attacker.send("clear_alias"))["code"] == 401
    assert (await phone.send("get_device"))["alias"] == "alice"


async def test_of_two_first_hellos_one_gets_the_key(
    installation: EdgeInstallation, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the token unknown; the second one's command is decided after the device exists."""
    append, both = installation.log.append, asyncio.Barrier(2)

    async def together(records: Any) -> Any:
        if any(record.topic == DEVICE_COMMANDS.name for record in records):
            await both.wait()
        return await append(records)

    now_ms = installation.clock.now_ms

    def moved_ms() -> int:
        installation.clock.move(0.001)
        return now_ms()

    monkeypatch.setattr(installation.log, "append", together)
    monkeypatch.setattr(installation.clock, "now_ms", moved_ms)
    hellos = (HttpDevice(installation, app, TOKEN).send("hello") for _ in range(2))
    answers = sorted(await asyncio.gather(*hellos), key=lambda answer: str(answer["type"]))
    assert [answer["type"] for answer in answers] == ["error", "welcome"]
    assert "key" not in answers[0]


async def test_a_removed_token_comes_back_anew_without_its_key(
    installation: EdgeInstallation, app: App, victim: HttpDevice
) -> None:
    for removal in (RemoveDevice(reason="BadDeviceToken"), RemoveDevice()):
        old_key = victim.identity["key"]
        await installation.command(app.appkey, TOKEN, DeviceCommand(remove=removal))
        stranger = HttpDevice(installation, app, TOKEN)
        welcome = await stranger.hello()
        assert (welcome["new"], welcome["key"] == old_key) == (True, False)
        assert state(await stranger.send("get_device")) == (None, [], [], {})
        assert (await victim.send("get_device"))["code"] == 401
        installation.clock.move(AGAIN_MS / 1000)
        await victim.prove_possession()
        await stranger.send("set_alias", alias="bob")
        assert (await victim.send("get_device"))["alias"] is None


async def test_a_removed_token_comes_back_with_its_key_under_the_same_one(
    installation: EdgeInstallation, app: App, victim: HttpDevice
) -> None:
    key = victim.identity["key"]
    await installation.command(app.appkey, TOKEN, DeviceCommand(remove=RemoveDevice()))
    welcome = await victim.hello()
    assert (welcome["new"], welcome["key"]) == (True, key)


async def test_a_key_of_a_former_number_does_not_bring_a_removed_token_back(
    installation: EdgeInstallation, app: App, victim: HttpDevice
) -> None:
    old_key = victim.identity["key"]
    await victim.prove_possession()
    await installation.command(app.appkey, TOKEN, DeviceCommand(remove=RemoveDevice()))
    refused = await HttpDevice(installation, app, TOKEN).send("hello", key=old_key)
    assert refused == {"type": "error", "code": 401, "desc": "unauthorized"}
    assert (await victim.hello())["new"] is True


async def test_a_revoked_token_stays_revoked_until_the_apps_server_registers_it(
    installation: EdgeInstallation, app: App, victim: HttpDevice
) -> None:
    legacy, old_key = LegacyClient(installation), victim.identity["key"]
    await HttpDevice(installation, app, TOKEN).send("hello")
    (code,) = await pushed_codes(installation)
    await revoke(installation, app)
    unknown = await installation.push(push_to(None, 5, ios=app.appkey, token={"ios": TOKEN}), app.appkey)
    assert unknown["result"] == 401
    revoked = {"type": "error", "code": 401, "desc": STAYS_REVOKED, "reason": "revoked"}
    for token in (TOKEN, UPPER):
        device = HttpDevice(installation, app, token)
        for fields in ({}, {"key": old_key}, {"code": code}, {"key": "AAAA"}, {"key": old_key, "code": code}):
            assert await device.send("hello", **fields) == revoked, fields
        assert (await device.send("get_device", key=old_key))["code"] == 401
    assert len(await pushed_codes(installation)) == 1

    assert (await legacy.ios(app, "/register", token=TOKEN))["result"] == 0
    for fields in ({}, {"key": old_key}, {"code": code}):
        assert (await HttpDevice(installation, app, TOKEN).send("hello", **fields))["reason"] == "possession"
    device = HttpDevice(installation, app, TOKEN)
    installation.clock.move(AGAIN_MS / 1000)
    welcome = await device.prove_possession()
    assert welcome["key"] != old_key
    assert state(await device.send("get_device")) == (None, [], [], {})


async def test_a_revoked_token_of_an_older_log_has_no_second_spelling(installation: EdgeInstallation, app: App) -> None:
    await installation.device(app, UPPER, "alice")
    await revoke(installation, app, UPPER)
    assert (await HttpDevice(installation, app, TOKEN).send("hello"))["reason"] == "revoked"


async def test_between_the_revocation_of_all_keys_and_its_removal_a_token_stays_revoked(
    installation: EdgeInstallation, app: App, victim: HttpDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_removals(monkeypatch)
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.RevokeAppKeys(RevokeAppKeysRequest(appkey=app.appkey))
    await installation.context.apps.refresh()
    for fields in ({}, {"key": victim.identity["key"]}):
        assert (await HttpDevice(installation, app, TOKEN).send("hello", **fields))["reason"] == "revoked"
    assert (await LegacyClient(installation).ios(app, "/register", token=TOKEN))["result"] == 0
    assert (await HttpDevice(installation, app, TOKEN).prove_possession())["new"] is False


async def test_a_token_that_the_apps_server_registered_needs_a_code(installation: EdgeInstallation, app: App) -> None:
    assert (await LegacyClient(installation).ios(app, "/register", token=TOKEN))["result"] == 0
    assert (await HttpDevice(installation, app, TOKEN).prove_possession())["new"] is False


async def test_the_audit_of_the_push_names_the_hello_and_not_the_code(
    installation: EdgeInstallation, app: App, victim: HttpDevice
) -> None:
    await HttpDevice(installation, app, TOKEN).send("hello")
    (push,) = await installation.sent()
    named = {"appkey": app.appkey, "token": TOKEN}
    assert json.loads(push.request_json) == {"type": "hello", **named, "message": "possession code"}
