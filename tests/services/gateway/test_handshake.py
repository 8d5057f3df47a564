"""The handshake: which devices are welcomed, registered, refused or replaced."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from picows import WSHandshakeError

from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import DeviceCommand
from protos.registry.v1.registry_pb2 import GetDevicesRequest, QuotasChange, UpdateAppRequest
from services.domain.device_protocol.frames import SUBPROTOCOL, Hello
from services.domain.quota_notices import QuotaNotices
from services.domain.registrations import RegistrationRates
from services.domain.topics import DEVICE_COMMANDS
from services.errors import UnavailableError
from services.gateway.device_requests import DeviceRequests
from services.log.port import NewRecord, Partition
from services.registry import retirement
from testkit.gateway.role import ANDROID, IOS, PARTITIONS, RunningGateway
from testkit.gateway.websocket import CLOSE, UPGRADE, DeviceClient, Frame, RawClient, frame
from testkit.waiting import until
from tests.services.gateway.conftest import StartGateway

OTHER = "1000000003"
POLICY_VIOLATION = 1008
OPENED = SessionEventKind.SESSION_EVENT_KIND_OPENED
CLOSED = SessionEventKind.SESSION_EVENT_KIND_CLOSED


async def test_a_new_device_gets_a_token_and_a_key_that_proves_its_number(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    welcome = await client.hello(ANDROID, device={"brand": "Acme"})
    assert welcome["new"] is True
    assert welcome["heartbeat"] == 240
    device = await gateway.device(welcome["token"])
    assert gateway.keys.device_number(ANDROID, welcome["token"], welcome["key"]) == device.number
    assert device.attributes.brand == "Acme"


async def test_devices_that_come_together_are_registered_by_one_append_each_with_its_own_address(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.create_app(OTHER, Platform.PLATFORM_ANDROID)
    await gateway.apps.refresh()
    notices = QuotaNotices(gateway.context.peers, gateway.clock)
    rates = RegistrationRates(gateway.settings, gateway.clock, lambda: 1, Random(1), notices)
    requests, append = DeviceRequests(gateway.context, PARTITIONS, rates), gateway.log.append
    appends = Counter[str]()

    async def counted(new_records: Sequence[NewRecord]) -> list[int]:
        appends.update({record.topic for record in new_records})
        if appends[DEVICE_COMMANDS.name] == 1 and new_records[0].topic == DEVICE_COMMANDS.name:
            raise UnavailableError("the log is away for one append")
        return await append(new_records)

    monkeypatch.setattr(gateway.log, "append", counted)

    async def register_all() -> list[tuple[str, int] | BaseException]:
        hellos = [(Hello(appkey=(ANDROID, OTHER)[n % 2]), f"192.0.2.{n}") for n in range(40)]
        return await asyncio.gather(*(requests.register(*hello) for hello in hellos), return_exceptions=True)

    assert {type(each) for each in await register_all()} == {UnavailableError}, "every device is told to come again"
    registered = [each for each in await register_all() if not isinstance(each, BaseException)]
    assert appends[DEVICE_COMMANDS.name] == 2, "one append for all of them"
    devices = [await gateway.device(token) for token, _ in registered[::2]]
    assert [device.number for device in devices] == [number for _, number in registered[::2]]
    places = {
        (n % 2, requests.partition((ANDROID, OTHER)[n % 2], token), number)
        for n, (token, number) in enumerate(registered)
    }
    assert len(places) == 40
    reader = await gateway.log.open({Partition(DEVICE_COMMANDS.name, number): 0 for number in range(PARTITIONS)})
    origins = {DeviceCommand.FromString(record.value).meta.origin.address for record in await reader.read()}
    assert origins == {f"192.0.2.{n}" for n in range(40)}


async def test_a_known_device_is_welcomed_by_its_key_and_can_change_its_attributes(gateway: RunningGateway) -> None:
    first = await DeviceClient.connect(gateway.port)
    new = await first.hello(ANDROID)
    second = await DeviceClient.connect(gateway.port)
    again = await second.hello(ANDROID, token=new["token"], key=new["key"], device={"model": "X"})
    assert again == {**new, "new": False}
    events, _ = await gateway.session_facts(enough=3)
    assert [(event.kind, event.reason) for event in events] == [(OPENED, ""), (CLOSED, "replaced"), (OPENED, "")]
    read = await second.request(type="get_device", id=1)
    assert read["device"] == {"model": "X"}


async def test_an_odd_attribute_keeps_no_device_out(gateway: RunningGateway) -> None:
    device = await DeviceClient.connect(gateway.port)
    odd = {"model": None, "os_version": 14, "brand": "b" * 101, "carrier": ["x"], "channel": "c"}
    welcome = await device.request(type="hello", appkey=ANDROID, device=odd)
    assert welcome["type"] == "welcome"
    assert welcome["ignored"] == [
        "device.carrier: expected `str`",
        "device.brand: expected `str` of length <= 100",
    ]
    assert (await device.request(type="get_device", id=1))["device"] == {"os_version": "14", "channel": "c"}


async def test_the_appkey_may_be_a_number(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    assert (await client.request(type="hello", appkey=int(ANDROID)))["type"] == "welcome"


async def test_a_device_registers_in_an_app_created_a_moment_ago(gateway: RunningGateway) -> None:
    await gateway.create_app(OTHER, Platform.PLATFORM_ANDROID)
    client = await DeviceClient.connect(gateway.port)
    assert (await client.hello(OTHER))["type"] == "welcome"


async def test_all_refusals_are_alike(gateway: RunningGateway) -> None:
    await gateway.create_app(OTHER, Platform.PLATFORM_ANDROID)
    known = await (await DeviceClient.connect(gateway.port)).hello(ANDROID)
    of_other = await (await DeviceClient.connect(gateway.port)).hello(OTHER)
    token, key = known["token"], known["key"]
    refused: dict[str, dict[str, str]] = {
        "unknown app": {"appkey": "1999999999"},
        "unknown app, with a key": {"appkey": "1999999999", "token": token, "key": key},
        "app of the other platform": {"appkey": IOS},
        "app of the other platform, with a key": {"appkey": IOS, "token": token, "key": key},
        "no key": {"appkey": ANDROID, "token": token},
        "no token": {"appkey": ANDROID, "key": key},
        "wrong key": {"appkey": ANDROID, "token": token, "key": ("A" if key[0] != "A" else "B") + key[1:]},
        "key that is no base64": {"appkey": ANDROID, "token": token, "key": "ü"},
        "key that is too short": {"appkey": ANDROID, "token": token, "key": key[:-1]},
        "key that is too long": {"appkey": ANDROID, "token": token, "key": key + "A"},
        "unknown token": {"appkey": ANDROID, "token": "0" * 32, "key": key},
        "device of another app": {"appkey": ANDROID, "token": of_other["token"], "key": of_other["key"]},
        "key of another app's device": {"appkey": ANDROID, "token": token, "key": of_other["key"]},
    }
    ends = {case: await refusal_frames(gateway, hello) for case, hello in refused.items()}
    assert set(ends.values()) == {ends["wrong key"]}
    goodbye, close = ends["wrong key"]
    assert b'"unauthorized"' in goodbye.payload
    assert close.code == POLICY_VIOLATION


async def test_while_the_log_does_not_answer_unknown_devices_are_asked_to_come_again(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = await (await DeviceClient.connect(gateway.port)).hello(ANDROID)

    async def unavailable(_: object) -> None:
        raise UnavailableError("the log does not answer")

    monkeypatch.setattr(gateway.log, "ends", unavailable)
    await gateway.create_app(OTHER, Platform.PLATFORM_ANDROID)
    for hello in ({"appkey": "1999999999"}, {"appkey": ANDROID, "token": known["token"]}):
        goodbye, _ = await refusal_frames(gateway, hello)
        assert b'"reason":"draining"' in goodbye.payload
        assert b'"retry_after_ms":' in goodbye.payload
    client = await DeviceClient.connect(gateway.port)
    assert (await client.request(type="hello", appkey=ANDROID, **{k: known[k] for k in ("token", "key")}))["type"]


async def refusal_frames(gateway: RunningGateway, hello: dict[str, str]) -> tuple[Frame, ...]:
    """Return the frames that answer a hello, exactly as they came, up to the end of the connection."""
    client = await RawClient.connect(gateway.port)
    client.send_json(type="hello", **hello)
    frames = [await client.next(), await client.next()]
    client.send(frame(CLOSE, frames[-1].payload))
    assert await client.rest() == b""
    return tuple(frames)


async def test_a_second_hello_of_a_device_replaces_its_older_connection(gateway: RunningGateway) -> None:
    older = await DeviceClient.connect(gateway.port)
    welcome = await older.hello(ANDROID)
    newer = await DeviceClient.connect(gateway.port)
    await newer.hello(ANDROID, token=welcome["token"], key=welcome["key"])
    assert await older.goodbye() == "replaced"
    first, second = await gateway.delivery.until(
        lambda: len(gateway.delivery.connections()) == 2 and gateway.delivery.connections()
    )
    assert first < second
    await gateway.delivery.until(lambda: gateway.delivery.disconnected() == [first])
    answer = await newer.request(type="get_device", id=1)
    assert answer["type"] == "ok"


async def test_the_late_hello_of_an_earlier_connection_does_not_replace_a_later_one(gateway: RunningGateway) -> None:
    """The device has given the earlier connection up, but what it sent over it was still on its way."""
    first = await DeviceClient.connect(gateway.port)
    welcome = await first.hello(ANDROID)
    first.transport.disconnect(graceful=False)
    identity = {"token": welcome["token"], "key": welcome["key"]}
    earlier, later = [await DeviceClient.connect(gateway.port) for _ in range(2)]
    assert (await later.hello(ANDROID, **identity))["type"] == "welcome"
    earlier.send(type="hello", appkey=ANDROID, **identity)
    assert await earlier.goodbye() == "replaced"
    assert (await later.request(type="get_device", id=1))["type"] == "ok"


async def test_delivery_can_close_a_connection(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    gateway.delivery.close(connection, "replaced")
    assert await client.goodbye() == "replaced"


async def test_hello_must_be_the_first_frame_and_come_once(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    client.send(type="get_device", id=1)
    assert await client.goodbye() == "protocol"
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    client.send(type="hello", appkey=ANDROID)
    assert await client.goodbye() == "protocol"


async def test_frames_sent_with_the_first_hello_wait_for_the_welcome(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    client.send(type="hello", appkey=ANDROID)
    client.send(type="set_alias", id=1, alias="anna")
    client.send(type="get_device", id=2)
    assert (await client.next())["type"] == "welcome"
    assert await client.next() == {"type": "ok", "id": 1}
    assert (await client.next())["alias"] == "anna"


async def test_the_subprotocol_is_confirmed_when_requested(gateway: RunningGateway) -> None:
    requesting = await DeviceClient.connect(gateway.port, {"Sec-WebSocket-Protocol": f"other, {SUBPROTOCOL}"})
    assert requesting.transport.response.headers["Sec-WebSocket-Protocol"] == SUBPROTOCOL
    silent = await DeviceClient.connect(gateway.port)
    assert "Sec-WebSocket-Protocol" not in silent.transport.response.headers


async def test_other_paths_answer_404(gateway: RunningGateway) -> None:
    with pytest.raises(WSHandshakeError) as refused:
        await DeviceClient.connect(gateway.port, path="/device/v2")
    assert refused.value.response is not None
    assert refused.value.response.status == 404


async def test_a_browser_keeps_the_connection_alive_while_it_upgrades(gateway: RunningGateway) -> None:
    client = await RawClient.connect(gateway.port, upgrade=False)
    client.send(UPGRADE.replace(b"Connection: Upgrade", b"Connection: keep-alive, Upgrade"))
    await client.upgraded()
    assert (await client.hello(ANDROID))["type"] == "welcome"


async def test_a_header_that_is_not_ascii_is_a_bad_request(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    client = await RawClient.connect(gateway.port, upgrade=False)
    client.send(UPGRADE.replace(b"Version: 13", b"Version: 1\xff3"))
    assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


async def test_a_device_over_the_apps_quota_is_told_why_and_to_come_back_much_later(
    gateway: RunningGateway,
) -> None:
    await gateway.limit_devices(ANDROID, 2)
    known = [await (await DeviceClient.connect(gateway.port)).hello(ANDROID) for _ in range(2)]
    assert [welcome["type"] for welcome in known] == ["welcome"] * 2
    commands = await gateway.log.ends([Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)])
    refused = await DeviceClient.connect(gateway.port)
    error = await refused.hello(ANDROID)
    assert (error["type"], error["code"], "id" in error) == ("error", 429, False)
    assert "2 devices" in error["desc"]
    goodbye = await refused.next()
    assert (goodbye["type"], goodbye["reason"]) == ("goodbye", "draining")
    assert 600_000 <= goodbye["retry_after_ms"] < 1_200_000
    again = await DeviceClient.connect(gateway.port)
    assert (await again.hello(ANDROID, token=known[0]["token"], key=known[0]["key"]))["type"] == "welcome"
    assert await gateway.log.ends(commands) == commands, "nothing was appended for the refused device"


async def test_too_many_new_devices_from_one_address_are_told_to_come_back(
    start_gateway: StartGateway,
) -> None:
    gateway = await start_gateway(registrations_per_minute_per_address=1)
    known = [await (await DeviceClient.connect(gateway.port)).hello(ANDROID) for _ in range(5)]
    assert [welcome["type"] for welcome in known] == ["welcome"] * 5
    commands = await gateway.log.ends([Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)])
    refused = await DeviceClient.connect(gateway.port)
    error = await refused.hello(ANDROID)
    assert (error["type"], error["code"]) == ("error", 429)
    assert error["desc"].startswith(f"app {ANDROID} may register 1 new devices a minute from one address; try again in")
    goodbye = await refused.next()
    assert (goodbye["type"], goodbye["reason"]) == ("goodbye", "draining")
    assert 60_000 <= goodbye["retry_after_ms"] < 360_000
    again = await DeviceClient.connect(gateway.port)
    assert (await again.hello(ANDROID, token=known[0]["token"], key=known[0]["key"]))["type"] == "welcome"
    assert await gateway.log.ends(commands) == commands, "nothing was appended for the refused device"
    gateway.clock.move(60)
    assert (await (await DeviceClient.connect(gateway.port)).hello(ANDROID))["type"] == "welcome"


async def test_an_apps_own_rate_of_registrations_replaces_the_installations(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(registrations_per_minute=1)

    async def set_rate(change: QuotasChange) -> None:
        await gateway.registry.UpdateApp(UpdateAppRequest(appkey=ANDROID, quotas=change))
        await gateway.apps.refresh()

    async def answers(count: int) -> list[str]:
        clients = [await DeviceClient.connect(gateway.port) for _ in range(count)]
        return [(await client.hello(ANDROID))["type"] for client in clients]

    assert await answers(6) == ["welcome"] * 5 + ["error"]
    await set_rate(QuotasChange(registrations_per_minute=0))
    assert await answers(6) == ["welcome"] * 6
    await set_rate(QuotasChange(default_registrations=True))
    assert await answers(1) == ["error"]


async def test_a_device_that_was_removed_for_its_silence_is_back_when_it_connects(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retirement, "PAGE_MS", 0)
    silent, lively = [await (await DeviceClient.connect(gateway.port)).hello(ANDROID) for _ in range(2)]
    before = await gateway.device(silent["token"])
    gateway.clock.move(300 * 86_400)

    async def connected(device: dict[str, Any]) -> DeviceClient:
        client = await DeviceClient.connect(gateway.port)
        welcome = await client.hello(ANDROID, token=device["token"], key=device["key"])
        assert (welcome["type"], welcome["new"], welcome["key"]) == ("welcome", False, device["key"])
        return client

    async def is_registered(expected: bool) -> bool:
        request = GetDevicesRequest(appkey=ANDROID, tokens=[silent["token"]])
        return bool((await gateway.registry.GetDevices(request)).devices) is expected

    async def is_removed() -> bool:
        await connected(lively)
        gateway.clock.move(3600)
        return await is_registered(expected=False)

    await until(is_removed)
    await connected(silent)
    await until(partial(is_registered, expected=True))
    after = await gateway.device(silent["token"])
    assert (after.number, after.registered_ms) == (before.number, before.registered_ms)
