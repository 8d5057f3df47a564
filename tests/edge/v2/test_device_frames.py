"""POST /device/v1: the device protocol over HTTP."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from edge.v2.device_frames import REPORTS_BURST
from protos.delivery.v1.delivery_pb2 import (
    OUTCOME_KIND_CLICKED,
    OUTCOME_KIND_DISMISSED,
    OUTCOME_KIND_RECEIVED,
    OUTCOME_KIND_SHOWN,
)
from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_APP_OPENED, SESSION_EVENT_KIND_LOGGED_OUT, SessionFact
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_WEBPUSH, PLATFORM_ANDROID, PLATFORM_IOS, App, Platform
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from protos.registry.v1.registry_pb2 import (
    ChannelChange,
    GetDevicesRequest,
    RevokeDeviceKeyRequest,
    UpdateAppRequest,
    WebOrigins,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.channel_credentials.webpush import public_key_of
from services.domain.device_protocol.frames import MAX_FRAME_BYTES
from services.domain.registrations import RegistrationLimiter
from services.domain.topics import DEVICE_COMMANDS, DEVICES, SESSIONS, decode, device_key
from services.errors import UnavailableError
from services.log.port import Partition
from services.log.topics import partition_of
from testkit.apns.tokens import ios_token
from testkit.edge.http_device import HttpDevice
from testkit.edge.role import BACKENDS, NOW_MS, PARTITIONS, EdgeInstallation, edge_installation
from testkit.edge.sent_pushes import targets
from testkit.edge.v2_bodies import push_to
from testkit.subscriptions import subscription_keys_as_text

UNAUTHORIZED = {"type": "error", "code": 401, "desc": "unauthorized"}


TOKEN = "abcd" * 16


async def test_an_ios_device_registers_and_is_pushed_to_at_once(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    device = HttpDevice(installation, app, token="f00d" * 16)
    welcome = await device.hello(device={"region": "北京市", "carrier": "cm"})
    assert (welcome["token"], welcome["new"], welcome["heartbeat"]) == ("f00d" * 16, True, 240)
    assert await device.send("set_alias", id=5, alias="alice") == {"type": "ok", "id": 5}
    assert await device.send("add_tags", id=6, tags=[3, 1]) == {"type": "ok", "id": 6}
    assert await device.send("add_stags", stags=["news"]) == {"type": "ok"}
    known = await device.send("get_device", id=7)
    assert (known["id"], known["alias"], known["tags"], known["stags"]) == (7, "alice", [1, 3], ["news"])
    assert known["device"] == {"region": "北京市", "carrier": "cm"}
    for body in (
        push_to(None, 5, ios=app.appkey, token={"ios": device.identity["token"]}),
        push_to(None, 3, ios=app.appkey, alias="alice"),
    ):
        assert (await installation.push(body, app.appkey))["desc"] == "send ok"
    assert [len(targets(push.audience.devices)) for push in await installation.sent()] == [1, 1]


async def test_a_change_of_the_alias_is_confirmed_once_delivery_has_dropped_what_waited(
    installation: EdgeInstallation,
) -> None:
    app = await installation.app(PLATFORM_IOS)
    device = HttpDevice(installation, app, TOKEN)
    await device.hello()
    checked = [(app.appkey, partition_of(device_key(app.appkey, TOKEN), PARTITIONS), 0)]
    assert installation.aliases.checked == []
    assert await device.send("set_alias", id=1, alias="alice") == {"type": "ok", "id": 1}
    assert await device.send("clear_alias", id=2) == {"type": "ok", "id": 2}
    assert await device.send("add_tags", id=3, tags=[3]) == {"type": "ok", "id": 3}
    assert installation.aliases.checked == checked * 2
    installation.aliases.error = UnavailableError("it is away")
    refused = await device.send("set_alias", id=4, alias="bob")
    assert refused["code"] == 500
    assert "repeat the request" in refused["desc"]
    installation.aliases.error = None
    assert await device.send("set_alias", id=5, alias="bob") == {"type": "ok", "id": 5}
    assert installation.aliases.checked == checked * 3


async def test_an_address_is_set_and_cleared_over_http(installation: EdgeInstallation) -> None:
    app = await installation.app()
    device = HttpDevice(installation, app)
    token = (await device.hello())["token"]
    endpoint = "https://push.example.org/wpush/v2/secret-part"
    subscription = {"channel": "webpush", "address": endpoint, "keys": subscription_keys_as_text()}
    assert await device.send("set_address", id=1, **subscription) == {"type": "ok", "id": 1}
    assert await device.send("set_address", id=2, channel="fcm", address="cXz:APA91b") == {"type": "ok", "id": 2}
    assert (await device.send("get_device"))["channels"] == ["webpush", "fcm"]
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    (stored,) = (await registry.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=[token]))).devices
    assert [(each.channel, each.address, len(each.p256dh), len(each.auth)) for each in stored.addresses] == [
        (CHANNEL_WEBPUSH, endpoint, 65, 16),
        (CHANNEL_FCM, "cXz:APA91b", 0, 0),
    ]
    states = [Partition(DEVICES.name, number) for number in range(PARTITIONS)]
    before = await installation.log.ends(states)
    assert await device.send("set_address", id=3, **subscription) == {"type": "ok", "id": 3}
    assert await installation.log.ends(states) == before, "a repeated address writes nothing"
    assert await device.send("clear_address", id=4, channel="webpush") == {"type": "ok", "id": 4}
    assert (await device.send("get_device"))["channels"] == ["fcm"]


async def test_an_ios_device_has_no_other_address_than_its_token(installation: EdgeInstallation) -> None:
    device = HttpDevice(installation, await installation.app(PLATFORM_IOS), TOKEN)
    await device.hello()
    refused = await device.send("set_address", id=1, channel="fcm", address="secret-part")
    assert (refused["code"], "APNs token" in refused["desc"], "secret-part" in refused["desc"]) == (400, True, False)


async def test_what_waits_for_a_removed_device_is_checked_when_it_registers_again(
    installation: EdgeInstallation,
) -> None:
    app = await installation.app(PLATFORM_IOS)
    device = HttpDevice(installation, app, TOKEN)
    await device.hello()
    await device.send("set_alias", alias="alice")
    await installation.command(app.appkey, TOKEN, DeviceCommand(remove=RemoveDevice(reason="unregistered")))
    assert len(installation.aliases.checked) == 1
    assert (await device.hello())["new"] is True
    assert len(installation.aliases.checked) == 2
    assert len(set(installation.aliases.checked)) == 1


async def test_a_second_hello_welcomes_the_same_device(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    device = HttpDevice(installation, app, TOKEN)
    first = await device.hello(device={"model": "m1"})
    again = await device.hello(device={"model": "m2"})
    assert (again["new"], again["key"]) == (False, first["key"])
    assert (await device.send("get_device"))["device"]["model"] == "m2"


async def test_an_ios_token_that_says_hello_again_outlives_a_late_answer_of_apple(
    installation: EdgeInstallation,
) -> None:
    app = await installation.app(PLATFORM_IOS)
    lost, keyed = (HttpDevice(installation, app, ios_token(name)) for name in ("lost", "keyed"))
    await lost.hello()
    await keyed.hello()
    installation.clock.move(10)
    refused_ms = installation.clock.now_ms()
    installation.clock.move(10)
    assert (await lost.prove_possession())["new"] is False
    assert (await keyed.hello(device={"model": "m2"}))["new"] is False
    late = RemoveDevice(reason="Unregistered", registered_before_ms=refused_ms)
    for device in (lost, keyed):
        await installation.command(app.appkey, device.identity["token"], DeviceCommand(remove=late))
    assert (await lost.send("get_device"))["type"] == "ok"
    assert (await keyed.send("get_device"))["device"] == {"model": "m2"}


async def test_an_android_device_gets_a_token_and_needs_its_key(installation: EdgeInstallation) -> None:
    app = await installation.app()
    device = HttpDevice(installation, app)
    welcome = await device.hello()
    assert welcome["new"] is True
    assert (await HttpDevice(installation, app).hello())["token"] != welcome["token"]
    assert (await device.hello())["new"] is False
    impostor = HttpDevice(installation, app, welcome["token"])
    assert await impostor.send("hello") == UNAUTHORIZED
    assert await impostor.send("hello", key="AAAA") == UNAUTHORIZED
    assert await impostor.send("get_device") == UNAUTHORIZED
    assert await impostor.send("set_alias", alias="x", key=device.identity["key"][:-1] + "_") == UNAUTHORIZED


async def test_the_key_of_another_device_or_app_is_refused(installation: EdgeInstallation) -> None:
    app, other = await installation.app(PLATFORM_IOS), await installation.app(PLATFORM_IOS)
    one, two = HttpDevice(installation, app, ios_token("one")), HttpDevice(installation, app, ios_token("two"))
    await one.hello()
    await two.hello()
    assert await one.send("get_device", key=two.identity["key"]) == UNAUTHORIZED
    assert await one.send("get_device", appkey=other.appkey) == UNAUTHORIZED
    assert (await one.send("hello", key=two.identity["key"]))["code"] == 401
    assert await one.send("hello", appkey="1000000000") == UNAUTHORIZED


async def test_activity_is_a_fact_in_the_log(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    device = HttpDevice(installation, app, TOKEN)
    await device.hello()
    assert await device.send("activity", event="open") == {"type": "ok"}
    assert await device.send("activity", event="logout") == {"type": "ok"}
    partition = partition_of(device_key(app.appkey, TOKEN), PARTITIONS)
    page = await installation.log.select({Partition(SESSIONS.name, partition): 0}, 100)
    facts: list[SessionFact] = [decode(record) for record in page.records]
    events = [event for fact in facts for event in fact.batch.events]
    assert [event.kind for event in events] == [SESSION_EVENT_KIND_APP_OPENED, SESSION_EVENT_KIND_LOGGED_OUT]
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    known = await registry.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=[TOKEN]))
    number = known.devices[0].number
    assert {(event.appkey, event.number, event.connection) for event in events} == {(app.appkey, number, 0)}
    assert not any(TOKEN.encode() in record.key + record.value for record in page.records)
    assert {event.time_ms for event in events} == {NOW_MS}


async def test_a_ping_needs_a_connection(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    device = HttpDevice(installation, app, TOKEN)
    await device.hello()
    answer = await device.send("ping")
    assert (answer["type"], answer["code"]) == ("error", 400)
    assert answer["desc"].endswith("not supported over HTTP")


async def test_acknowledgements_and_reports_are_handed_to_delivery(installation: EdgeInstallation) -> None:
    app = await installation.app()
    device = HttpDevice(installation, app)
    token = (await device.hello())["token"]
    assert await device.send("ack", msgids=[1, 2]) == {"type": "ok"}
    assert await device.send("report", event="shown", msgid=1, id=7) == {"type": "ok", "id": 7}
    for event in ("clicked", "dismissed"):
        await device.send("report", event=event, msgid=2**53 - 1)
    partition = partition_of(device_key(app.appkey, token), PARTITIONS)
    assert {row[:3] for row in installation.reports.rows} == {(app.appkey, partition, 0)}
    assert [row[3:] for row in installation.reports.rows] == [
        (1, OUTCOME_KIND_RECEIVED),
        (2, OUTCOME_KIND_RECEIVED),
        (1, OUTCOME_KIND_SHOWN),
        (2**53 - 1, OUTCOME_KIND_CLICKED),
        (2**53 - 1, OUTCOME_KIND_DISMISSED),
    ]


async def test_reports_of_many_devices_share_calls(installation: EdgeInstallation) -> None:
    app = await installation.app()
    devices = [HttpDevice(installation, app) for _ in range(20)]
    for device in devices:
        await device.hello()
    await asyncio.gather(*(device.send("report", event="shown", msgid=5) for device in devices))
    assert len(installation.reports.rows) == 20
    assert installation.reports.calls < 20


async def test_a_report_that_delivery_does_not_record_is_not_confirmed(installation: EdgeInstallation) -> None:
    device = HttpDevice(installation, await installation.app())
    await device.hello()
    installation.reports.error = UnavailableError("away")
    answer = await device.send("report", event="shown", msgid=1, id=3)
    assert (answer["type"], answer["code"], answer["id"]) == ("error", 500, 3)


async def test_a_device_that_reports_too_often_must_wait(installation: EdgeInstallation) -> None:
    app = await installation.app()
    device, other = HttpDevice(installation, app), HttpDevice(installation, app)
    await device.hello()
    await other.hello()
    for _ in range(REPORTS_BURST):
        assert (await device.send("ack", msgids=[1]))["type"] == "ok"
    frame = json.dumps({"type": "ack", **device.identity, "msgids": [1]}).encode()
    refused = await installation.http.post("/device/v1", content=frame)
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, 429, "1")
    assert (await other.send("ack", msgids=[1]))["type"] == "ok"
    installation.clock.move(1)
    assert (await device.send("ack", msgids=[1]))["type"] == "ok"


async def test_only_the_key_of_the_device_reports(installation: EdgeInstallation) -> None:
    device = HttpDevice(installation, await installation.app())
    await device.hello()
    device.identity["key"] = "A" * len(device.identity["key"])
    for frame in ({"kind": "ack", "msgids": [1]}, {"kind": "report", "event": "shown", "msgid": 1}):
        assert (await device.send(**frame))["code"] == 401
    assert installation.reports.rows == []


async def change_app(installation: EdgeInstallation, app: App, **fields: Any) -> App:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    changed = await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, **fields))
    await installation.context.apps.refresh()
    return changed.app


async def test_pages_of_the_origins_of_the_app_read_answers(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await change_app(installation, app, web_origins=WebOrigins(origins=["https://example.org"]))
    hello = json.dumps({"type": "hello", "appkey": app.appkey}).encode()
    wrong = json.dumps({"type": "report", "appkey": app.appkey}).encode()
    for content in (hello, wrong):
        for origin, allowed in {"https://example.org": True, "https://example.com": False, "null": False}.items():
            response = await installation.http.post("/device/v1", content=content, headers={"Origin": origin})
            assert response.headers.get("access-control-allow-origin") == (origin if allowed else None)
            assert response.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in response.headers
    response = await installation.http.post("/device/v1", content=b"[]", headers={"Origin": "https://example.org"})
    assert "access-control-allow-origin" not in response.headers
    assert "vary" not in (await installation.http.post("/device/v1", content=hello)).headers
    preflight = await installation.http.options("/device/v1", headers={"Origin": "https://example.org"})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-headers"] == "Content-Type"


async def test_the_key_that_pages_subscribe_with(installation: EdgeInstallation) -> None:
    app = await installation.app()
    path = f"/device/v1/webpush-key?appkey={app.appkey}"
    answer = (await installation.http.get(path)).json()
    assert answer["result"] == 400
    assert "carillon app set" in answer["desc"]
    change = ChannelChange(channel=CHANNEL_WEBPUSH, fields={"key": "new", "contact": "https://example.org/push"})
    changed = await change_app(installation, app, channels=[change])
    response = await installation.http.get(path)
    assert response.json() == {"result": 0, "key": public_key_of(changed)}
    assert response.headers["access-control-allow-origin"] == "*"
    assert (await installation.http.get("/device/v1/webpush-key")).json()["result"] == 400


MALFORMED = [
    (b"", "input error: the frame is not JSON"),
    (b"[]", "input error"),
    (b'{"type":"hello"}', "input error: object missing required field `appkey`"),
    (b'{"type":"dance","appkey":"APP"}', "input error"),
    (b'{"type":"hello","appkey":"APP"}', "input error: token is missing: it is the one that APNs gave"),
    (b'{"type":"add_tags","appkey":"APP","tags":["x"],"id":3}', "input error: tags[0]"),
]


async def test_malformed_frames(installation: EdgeInstallation) -> None:
    for frame, desc in MALFORMED:
        app = await installation.app(PLATFORM_IOS)
        answer = await installation.post(frame.replace(b"APP", app.appkey.encode()), "/device/v1")
        assert (answer["type"], answer["code"]) == ("error", 400)
        assert answer["desc"].startswith(desc)
        assert answer.get("id") == (3 if b'"id"' in frame else None)


async def test_while_the_log_does_not_answer_an_unknown_app_is_not_refused(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = HttpDevice(installation, await installation.app(PLATFORM_IOS), token="f00d" * 16)
    await device.hello()

    async def unavailable(_: object) -> None:
        raise UnavailableError("the log does not answer")

    monkeypatch.setattr(installation.log, "ends", unavailable)
    assert (await device.send("hello", appkey="1000000000"))["code"] == 500
    assert await device.send("get_device", key="AAAA") == UNAUTHORIZED
    assert (await device.send("get_device"))["type"] == "ok"


async def test_the_size_of_a_frame_is_limited(installation: EdgeInstallation) -> None:
    answer = await installation.http.post("/device/v1", content=b" " * (MAX_FRAME_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["result"] == 413


async def revoke(installation: EdgeInstallation, app: App, token: str) -> None:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=app.appkey, token=token))
    await installation.context.apps.refresh()


async def test_a_revoked_key_is_refused_as_a_wrong_one_is(installation: EdgeInstallation) -> None:
    app = await installation.app()
    device = HttpDevice(installation, app)
    await device.hello()
    wrong = json.dumps({"type": "get_device", **device.identity, "key": "AAAA"}).encode()
    refused = await installation.http.post("/device/v1", content=wrong)
    await revoke(installation, app, device.identity["token"])
    for kind in ("get_device", "hello", "add_tags", "activity"):
        frame = {"type": kind, **device.identity, "tags": [1], "event": "open"}
        answer = await installation.http.post("/device/v1", content=json.dumps(frame).encode())
        assert (answer.status_code, answer.content) == (refused.status_code, refused.content)
    assert (await HttpDevice(installation, app).hello())["new"] is True


async def test_a_removed_device_is_told_so_and_changes_nothing(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    device = HttpDevice(installation, app, TOKEN)
    await device.hello()
    await device.send("set_alias", alias="carol")
    await installation.command(app.appkey, TOKEN, DeviceCommand(remove=RemoveDevice()))
    refused = {"type": "error", "id": 2, "code": 400, "desc": "input error: no such device"}
    for kind, fields in (
        ("set_alias", {"alias": "dave"}),
        ("add_stags", {"stags": ["q"]}),
        ("activity", {"event": "open"}),
        ("get_device", {}),
    ):
        assert await device.send(kind, id=2, **fields) == refused, kind
    assert (await device.hello())["new"] is True
    assert (await device.send("get_device"))["alias"] is None
    assert await device.send("set_alias", id=2, alias="dave") == {"type": "ok", "id": 2}


async def test_a_device_gives_itself_at_most_a_thousand_string_tags(installation: EdgeInstallation) -> None:
    device = HttpDevice(installation, await installation.app(PLATFORM_IOS), TOKEN)
    await device.hello()
    tags = [f"s{number:04}" for number in range(1001)]
    for start in range(0, 1000, 100):
        assert await device.send("add_stags", id=1, stags=tags[start : start + 100]) == {"type": "ok", "id": 1}
    desc = "input error: stags: a device has at most 1000 string tags"
    full = {"type": "error", "id": 2, "code": 400, "desc": desc}
    assert await device.send("add_stags", id=2, stags=tags[-2:]) == full
    assert await device.send("add_stags", id=3, stags=tags[:2]) == {"type": "ok", "id": 3}


async def test_registrations_are_limited_by_address_as_at_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.v2.app.RegistrationLimiter", lambda _: RegistrationLimiter(per_s=1))
    async with edge_installation(tmp_path, BACKENDS) as installation:
        app = await installation.app(PLATFORM_IOS)
        known = HttpDevice(installation, app, token="f00d" * 16)
        await known.hello()
        for number in range(9):
            await HttpDevice(installation, app, token=f"{number:064x}").hello()
        before = await installation.log.ends([Partition(DEVICE_COMMANDS.name, each) for each in range(PARTITIONS)])
        for appkey in (app.appkey, "1999999999"):
            hello = {"type": "hello", "appkey": appkey, "token": "beef" * 16}
            refused = await installation.http.post("/device/v1", json=hello)
            assert (refused.status_code, refused.json()["code"]) == (429, 429)
            assert refused.headers["retry-after"] == "10"
        assert await installation.log.ends(before) == before
        assert (await known.hello())["new"] is False
        installation.clock.move(1)
        await HttpDevice(installation, app, token="beef" * 16).hello()


@pytest.mark.parametrize("platform", [PLATFORM_ANDROID, PLATFORM_IOS])
async def test_a_device_that_registered_before_the_log_went_back_is_registered_anew(
    installation: EdgeInstallation, platform: "Platform.ValueType"
) -> None:
    app = await installation.app(platform)
    device = HttpDevice(installation, app, TOKEN)
    lost = installation.context.keys.device_key(app.appkey, TOKEN, 7)
    assert (await device.send("set_alias", alias="x", key=lost))["desc"] == "input error: no such device"
    welcome = await device.hello(key=lost, device={"model": "m1"})
    assert (welcome["token"], welcome["new"], welcome["key"] != lost) == (TOKEN, True, True)
    assert (await device.send("get_device"))["device"] == {"model": "m1"}
    assert (await device.hello())["new"] is False
    assert await device.send("get_device", key=lost) == UNAUTHORIZED
    partition = partition_of(device_key(app.appkey, TOKEN), PARTITIONS)
    names = (ios_token(str(number)) for number in itertools.count())
    neighbour = next(name for name in names if partition_of(device_key(app.appkey, name), PARTITIONS) == partition)
    assert installation.context.apps.is_lost(app.appkey, partition, 8)
    other = HttpDevice(installation, app, neighbour)
    reserved = installation.context.keys.device_key(app.appkey, neighbour, 8)
    assert (await other.hello(key=reserved))["new"] is True
    if platform == PLATFORM_ANDROID:  # an iOS device is asked for the code of a silent push
        assert (await device.hello(key=lost))["key"] == welcome["key"]
