"""Payloads for iOS devices: the same through the legacy and the v2 interface, and never larger than APNs accepts."""

import itertools
import json
from typing import Any

import pytest

from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.apns_payload import MAX_PAYLOAD_BYTES, max_size_bytes, payload
from testkit.edge.legacy_client import LegacyClient
from testkit.edge.role import EdgeInstallation

TOKEN = "ab" * 32
EMPTY_BYTES = len(b'{"aps":{"alert":"","sound":"default"}}')
CAPACITY_BYTES = MAX_PAYLOAD_BYTES - EMPTY_BYTES
NOTIFICATION = {"aps": {"alert": "hi", "sound": "default"}}


def v2(app: App, content: str, is_notif: int, style: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a v2 push to every device of an iOS app."""
    basic = {"content": content, "is_notif": is_notif}
    return {
        "sendTo": {"appkey": {"ios": app.appkey}, "userScope": 2},
        "msgStyle": {"basic": basic, "ios": style},
        **more,
    }


def notified(**aps: Any) -> dict[str, Any]:
    return {"aps": {**NOTIFICATION["aps"], **aps}}


async def last(installation: EdgeInstallation) -> Message:
    return (await installation.sent())[-1].message


SAME: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}, NOTIFICATION),
    ({"badge": 0}, {"badge": 0}, {}, notified(badge=0)),
    ({"badge": "7"}, {"badge": 7}, {}, notified(badge=7)),
    ({"badge": -1}, {"badge": -1}, {}, notified(badge=0)),
    ({}, {"sound": "default"}, {}, NOTIFICATION),
    ({"content-available": 1}, {"content-available": 1}, {}, notified(**{"content-available": 1})),
    ({"content-available": "0"}, {"content-available": 0}, {}, NOTIFICATION),
    ({"category": "INVITE"}, {"category": "INVITE"}, {}, notified(category="INVITE")),
    ({"extra": '{"k":"日"}'}, {}, {"extra": '{"k":"日"}'}, {**NOTIFICATION, "extra": '{"k":"日"}'}),
    ({"transparent": 0}, {}, {}, NOTIFICATION),
    ({"transparent": 1}, {}, {"is_notif": 0}, {"aps": {"content-available": 1}, "content": "hi"}),
    (
        {"transparent": 1, "badge": 3, "category": "c", "extra": "x"},
        {"badge": 3, "category": "c", "sound": "bell"},
        {"is_notif": 0, "extra": "x"},
        {"aps": {"content-available": 1}, "content": "hi", "extra": "x"},
    ),
]


async def test_equal_pushes_through_legacy_and_v2_make_the_same_payload(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    for count, (legacy_fields, style, more, expected) in enumerate(SAME, 1):
        assert (await legacy.ios(ios_app, message="hi", **legacy_fields))["result"] == 0
        of_legacy = await last(installation)
        body = v2(ios_app, "hi", more.get("is_notif", 1), style, **{k: v for k, v in more.items() if k != "is_notif"})
        assert (await installation.push(body, ios_app.appkey))["result"] == 0
        assert len(await installation.sent()) == 2 * count
        assert json.loads(payload(of_legacy)) == expected
        assert payload(await last(installation)) == payload(of_legacy)


async def test_a_dictionary_is_the_alert(legacy: LegacyClient, installation: EdgeInstallation, ios_app: App) -> None:
    """Only the legacy interface has dictionaries; in v2 the content is always text."""
    await legacy.ios(ios_app, message={"title": "T", "body": "B"}, transparent=0)
    assert json.loads(payload(await last(installation))) == notified(alert={"title": "T", "body": "B"})
    given = {"aps": {"alert": {"title": "T"}, "mutable-content": 1}, "order": 7}  # Apple's payload itself
    await legacy.ios(ios_app, message=given)
    assert json.loads(payload(await last(installation))) == given
    await legacy.ios(ios_app, message={"a": [1]}, transparent=1)
    assert json.loads(payload(await last(installation))) == {"aps": {"content-available": 1}, "content": {"a": [1]}}
    await installation.push(v2(ios_app, '{"title":"T"}', 1, {}), ios_app.appkey)
    assert json.loads(payload(await last(installation))) == notified(alert='{"title":"T"}')


@pytest.mark.parametrize("style", [{"sound": "bell.caf"}, {"sound": ""}])
async def test_only_v2_has_a_sound(installation: EdgeInstallation, ios_app: App, style: dict[str, str]) -> None:
    await installation.push(v2(ios_app, "hi", 1, style), ios_app.appkey)
    assert json.loads(payload(await last(installation)))["aps"].get("sound", "") == style["sound"]


async def test_a_push_to_one_token_has_only_badge_and_category(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    await legacy.ios(ios_app, "/register", token=TOKEN)
    more = {"transparent": 1, "content-available": 1, "extra": "x" * 5000, "badge": 2, "category": "c"}
    assert (await legacy.ios(ios_app, message="hi", token=TOKEN, **more))["result"] == 0
    assert json.loads(payload(await last(installation))) == notified(badge=2, category="c")


LARGEST: list[tuple[str, int, Any]] = [
    ("message", CAPACITY_BYTES, lambda text: {"message": text}),
    ("message", CAPACITY_BYTES - len('{"body":""}') + len('""'), lambda text: {"message": {"body": text}}),
    ("extra", CAPACITY_BYTES - len('m,"extra":""'), lambda text: {"message": "m", "extra": text}),
    ("category", CAPACITY_BYTES - len('m,"category":""'), lambda text: {"message": "m", "category": text}),
    ("message", CAPACITY_BYTES - len(',"badge":2147483647'), lambda text: {"message": text, "badge": -1}),
]


async def test_the_legacy_interface_accepts_the_largest_payload_that_apple_accepts(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    for count, (field, capacity, fields_of) in enumerate(LARGEST, 1):
        assert (await legacy.ios(ios_app, **fields_of("x" * capacity)))["result"] == 0
        assert max_size_bytes(await last(installation)) == MAX_PAYLOAD_BYTES
        refused = await legacy.ios(ios_app, **fields_of("x" * (capacity + 1)))
        assert refused == {"result": 400, "desc": too_long(field)}
        assert len(await installation.sent()) == count


def too_long(field: str, size: int = MAX_PAYLOAD_BYTES + 1) -> str:
    return (
        f"input error: {field} is too long: it makes {size} bytes for iOS devices, of which Apple takes at most"
        f" {MAX_PAYLOAD_BYTES}"
    )


LARGEST_V2: list[tuple[str, int, Any, bool]] = [
    ("msgStyle.basic.content", CAPACITY_BYTES, lambda text: ({}, text), False),
    ("extra", CAPACITY_BYTES - len('m,"extra":""'), lambda text: ({}, "m"), True),
    ("msgStyle.ios.sound", CAPACITY_BYTES + len("default") - len("m"), lambda text: ({"sound": text}, "m"), False),
    ("msgStyle.ios.category", CAPACITY_BYTES - len('m,"category":""'), lambda text: ({"category": text}, "m"), False),
    ("msgStyle.basic.content", CAPACITY_BYTES - len(',"badge":2147483647'), lambda text: ({"badge": -1}, text), False),
]


async def test_v2_accepts_the_largest_payload_that_apple_accepts_immediate_or_timed(
    installation: EdgeInstallation, ios_app: App
) -> None:
    def body(length: int, style: Any, has_extra: bool, option: dict[str, int]) -> dict[str, Any]:
        text = "x" * length
        given, content = style(text)
        return v2(ios_app, content, 1, given, option=option, **({"extra": text} if has_extra else {}))

    options: list[dict[str, int]] = [{}, {"timed": 2, "send_time_interval": 60}]
    for count, (option, row) in enumerate(itertools.product(options, LARGEST_V2), 1):
        field, capacity, style, has_extra = row
        accepted = await installation.push(body(capacity, style, has_extra, option), ios_app.appkey)
        assert accepted["result"] == 0, (option, field)
        refused = await installation.push(body(capacity + 1, style, has_extra, option), ios_app.appkey)
        assert refused == {"result": 400, "desc": too_long(field)}
        assert len(await installation.sent()) + len(await installation.tasks()) == count


async def test_the_limit_counts_encoded_bytes(installation: EdgeInstallation, ios_app: App) -> None:
    """A character of three UTF-8 bytes counts three, one that JSON escapes counts two."""
    for character, each in (("日", 3), ('"', 2), ("\n", 2), ("\x01", 6)):
        count = CAPACITY_BYTES // each
        assert (await installation.push(v2(ios_app, character * count, 1, {}), ios_app.appkey))["result"] == 0
        size = EMPTY_BYTES + (count + 1) * each
        refused = await installation.push(v2(ios_app, character * (count + 1), 1, {}), ios_app.appkey)
        assert refused["desc"] == too_long("msgStyle.basic.content", size)


async def test_the_limit_holds_for_pass_through_messages_and_for_each_platform(
    installation: EdgeInstallation, ios_app: App
) -> None:
    android = await installation.app()
    capacity = MAX_PAYLOAD_BYTES - len('{"aps":{"content-available":1},"content":""}')
    body = v2(ios_app, "", 0, {"sound": "s" * 5000, "category": "c" * 5000})
    body["sendTo"] = {"appkey": {"android": android.appkey, "ios": ios_app.appkey}, "userScope": 0}
    keys = (android.appkey, ios_app.appkey)
    for length, result in ((capacity, 0), (capacity + 1, 400)):
        body["msgStyle"]["basic"]["content"] = {"android": "a" * 9000, "ios": "i" * length}
        answer = await installation.push(body, *keys)
        assert answer["result"] == result
    assert answer["desc"] == too_long("msgStyle.basic.content.ios")
    assert len(await installation.sent()) == 2


async def test_a_push_to_several_apps_is_refused_as_a_whole(installation: EdgeInstallation) -> None:
    keys = [(await installation.app(PLATFORM_IOS)).appkey for _ in range(2)]
    body = {
        "sendTo": {"appkey": {"ios": keys}, "userScope": 2},
        "msgStyle": {"basic": {"content": "x" * 4096, "is_notif": 1}},
    }
    assert (await installation.push(body, *keys))["result"] == 400
    assert await installation.sent() == []


async def test_pushes_of_an_app_that_asks_carry_their_message_id_where_there_is_room(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    other = await installation.app(platform=PLATFORM_IOS)

    async def ask(*, is_on: bool) -> None:
        await registry.UpdateApp(UpdateAppRequest(appkey=ios_app.appkey, apns_reports=is_on))
        await installation.context.apps.refresh()

    body = v2(ios_app, "hi", 1, {})
    body["sendTo"]["appkey"]["ios"] = [ios_app.appkey, other.appkey]
    await ask(is_on=True)
    assert (await installation.push(body, ios_app.appkey, other.appkey))["result"] == 0
    sent = {push.appkey: push.message for push in await installation.sent()}
    assert [sent[app.appkey].ios.carries_msgid for app in (ios_app, other)] == [True, False]
    await legacy.ios(ios_app, message="hi")
    assert json.loads(payload(await last(installation))) == {
        "aps": {**NOTIFICATION["aps"], "mutable-content": 1},
        "carillon": {"msgid": 0},
    }
    await legacy.ios(ios_app, message="x" * CAPACITY_BYTES)
    assert not (await last(installation)).ios.carries_msgid
    await ask(is_on=False)
    await legacy.ios(ios_app, message="hi")
    assert not (await last(installation)).ios.carries_msgid
