"""The legacy iOS interface: every rule of its requests, the answers, and the commands in the log."""

import json
from typing import Any, cast

import pytest

from edge.core.message_ids import SLOT_IDS
from protos.delivery.v1.delivery_pb2_grpc import add_AliasesServiceServicer_to_server
from protos.push.v1.push_pb2 import KIND_BROADCAST, KIND_UNICAST, IosStyle
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from protos.registry.v1.registry_pb2 import FindDevicesRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.topics import DEVICE_COMMANDS, decode, device_key
from services.log.port import Partition
from services.log.topics import partition_of
from services.net.rpc.server import Server
from testkit.edge.legacy_client import GONE, LegacyClient, Row, check
from testkit.edge.role import PARTITIONS, EdgeInstallation
from testkit.edge.sent_pushes import device_numbers, only_push, targets

TOKEN = "ab" * 32
UNKNOWN = "cd" * 32
ROWS: list[Row] = [
    ({}, None),
    ({"message": GONE}, "message is missing"),
    ({"message": None}, "message must be a string or an object"),
    ({"message": 5}, "message must be a string or an object"),
    ({"message": ["m"]}, "message must be a string or an object"),
    ({"message": ""}, "message must not be empty"),
    ({"message": "", "badge": 0}, None),
    ({"message": "", "badge": 0, "transparent": 1}, "message must not be empty"),
    ({"message": {}}, "message must not be empty"),
    ({"message": {"title": "t", "body": "b", "n": 10**30}}, None),
    ({"message": "m" * 4000}, None),
    (
        {"message": "m" * 5000},
        "message is too long: it makes 5038 bytes for iOS devices, of which Apple takes at most 4096",
    ),
    ({"period": 60}, None),
    ({"period": "604800"}, None),
    ({"period": 59}, "period must be an integer from 60 to 604800"),
    ({"period": 604_801}, "period must be an integer from 60 to 604800"),
    ({"period": "604801"}, "period must be an integer from 60 to 604800"),
    ({"period": []}, "period must be an integer"),
    ({"badge": 0}, None),
    ({"badge": "7"}, None),
    ({"badge": 2**31 - 1}, None),
    ({"badge": 2**31}, "badge must be an integer from -1 to 2147483647"),
    ({"badge": "x"}, "badge must be an integer"),
    ({"badge": 1.5}, "badge must be an integer"),
    ({"extra": "e"}, None),
    ({"extra": 5}, "extra must be a string"),
    *(({name: valid}, None) for name in ("transparent", "content-available") for valid in (0, 1, "0", "1", None)),
    *(
        ({name: wrong}, f"{name} must be an integer")
        for name in ("transparent", "content-available")
        for wrong in (2, -1, "2", "yes", True, [1])
    ),
    ({"category": "c"}, None),
    ({"category": 5}, "category must be a string"),
    ({"token": None}, "token must not be null"),
    *(({key: TOKEN}, f"{key} is not known; the field is token") for key in ("tokens", "Token", "TOKENS", "tokn")),
    ({"token": ""}, "token must not be empty"),
    ({"token": []}, "token must not be empty"),
    ({"token": [TOKEN, 5]}, "token[1] must be a string"),
    ({"token": 5}, "token must be a string or a list"),
    ({"token": {"a": 1}}, "token must be a string or a list"),
    ({"token": [UNKNOWN] * 1001}, None),
    ({"token": [TOKEN, "unknown", "", "(null)"]}, None),
    ({"token": TOKEN[1:]}, "token is no iOS token: it must have 64 to 200 hexadecimal digits"),
    # unknown fields, among them those of Android
    ({"title": "t", "sound": False, "click_action": "open_app", "is_notif": [], "alias": 5, "filter": "x"}, None),
]


async def test_every_rule_of_push(legacy: LegacyClient, installation: EdgeInstallation, ios_app: App) -> None:
    """A refused request leaves nothing in the log."""
    for fields, problem in ROWS:
        before = len(await installation.sent())
        body = {name: value for name, value in {"message": "m", **fields}.items() if value is not GONE}
        check(await legacy.ios(ios_app, **body), problem, fields)
        assert (len(await installation.sent()) > before) is (problem is None), fields


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_every_rule_of_register(legacy: LegacyClient, ios_app: App, method: str) -> None:
    rows: list[Row] = [
        ({"token": "a" * 200}, None),
        ({"token": f"<{' '.join(['740f4707'] * 8)}>"}, None),
        ({"token": "a" * 201}, "token is no iOS token: it must have 64 to 200 hexadecimal digits"),
        ({"token": "a" * 63}, "token is no iOS token: it must have 64 to 200 hexadecimal digits"),
        ({"token": "g" * 64}, "token is no iOS token: it must have 64 to 200 hexadecimal digits"),
        ({}, "token is missing"),
        ({"token": None}, "token must be a string"),
        ({"token": ""}, "token must not be empty"),
        ({"token": 5}, "token must be a string"),
        ({"token": [TOKEN]}, "token must be a string"),
    ]
    for fields, problem in rows:
        check(await legacy.ios(ios_app, "/register", method, **fields), problem, fields)


async def test_a_registered_token_is_pushed_to_at_once_and_a_deleted_one_is_unknown(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    registered, deleted = {"result": 0, "desc": "add token done"}, {"result": 0, "desc": "delete token done"}
    unknown = {"result": 401, "desc": "token not found"}
    assert await legacy.ios(ios_app, message="m", token=TOKEN) == unknown
    assert await legacy.ios(ios_app, "/register", token=TOKEN) == registered
    assert (await legacy.ios(ios_app, message="m", token=TOKEN))["result"] == 0
    assert await legacy.ios(ios_app, "/register", token=TOKEN) == registered
    assert await legacy.ios(ios_app, "/register", "DELETE", token=TOKEN) == deleted
    assert await legacy.ios(ios_app, message="m", token=TOKEN) == unknown
    assert await legacy.ios(ios_app, "/register", "DELETE", token=TOKEN) == deleted
    assert await legacy.ios(ios_app, "/register", token=TOKEN) == registered
    assert (await legacy.ios(ios_app, message="m", token=TOKEN))["result"] == 0
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    (device,) = (await registry.GetDevices(GetDevicesRequest(appkey=ios_app.appkey, tokens=[TOKEN]))).devices
    assert (device.platform, device.token, device.removed_ms) == (PLATFORM_IOS, TOKEN, 0)


async def test_what_waits_for_a_deleted_token_under_its_alias_is_checked_when_it_registers_again(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    add_AliasesServiceServicer_to_server(installation.aliases, cast(Server, installation.servers["delivery"]))
    for method in ("POST", "POST", "DELETE", "DELETE"):
        await legacy.ios(ios_app, "/register", method, token=TOKEN)
    assert installation.aliases.checked == []
    await legacy.ios(ios_app, "/register", token=TOKEN)
    assert installation.aliases.checked == [
        (ios_app.appkey, partition_of(device_key(ios_app.appkey, TOKEN), PARTITIONS), 0)
    ]


async def test_a_token_that_registers_again_outlives_a_late_answer_of_apple(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    await legacy.ios(ios_app, "/register", token=TOKEN)
    installation.clock.move(10)
    late = RemoveDevice(reason="Unregistered", registered_before_ms=installation.clock.now_ms())
    installation.clock.move(10)
    await legacy.ios(ios_app, "/register", token=TOKEN)
    await installation.command(ios_app.appkey, TOKEN, DeviceCommand(remove=late))
    assert (await legacy.ios(ios_app, message="m", token=TOKEN))["result"] == 0


async def test_a_deleted_token_is_recorded_as_unregistered(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    await legacy.ios(ios_app, "/register", token=TOKEN)
    await legacy.ios(ios_app, "/register", "DELETE", token=TOKEN)
    starts = {Partition(DEVICE_COMMANDS.name, number): 0 for number in range(PARTITIONS)}
    commands: list[DeviceCommand] = [decode(record) for record in (await installation.log.select(starts, 10)).records]
    assert [command.WhichOneof("command") for command in commands] == ["register", "remove"]
    assert commands[1].remove.reason == "unregistered"
    assert {command.meta.origin.interface for command in commands} == {"ios"}


async def test_a_token_belongs_to_one_app(legacy: LegacyClient, installation: EdgeInstallation, ios_app: App) -> None:
    other = await installation.app(PLATFORM_IOS)
    await legacy.ios(other, "/register", token=TOKEN)
    assert (await legacy.ios(ios_app, message="m", token=TOKEN))["result"] == 401
    await legacy.ios(ios_app, "/register", "DELETE", token=TOKEN)
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    found = await registry.FindDevices(FindDevicesRequest(appkey=other.appkey, tokens=[TOKEN]))
    assert found.numbers_plus_one[0] > 0


async def test_a_broadcast(legacy: LegacyClient, installation: EdgeInstallation, ios_app: App) -> None:
    answer = await legacy.ios(
        ios_app, message="世", period="60", badge="3", extra="e", category="c", **{"content-available": 1}
    )
    assert answer == {"result": 0, "desc": "send ok", "msgid": answer["msgid"]}
    push = await only_push(installation)
    assert (push.msgid, push.kind, push.platform) == (answer["msgid"], KIND_BROADCAST, PLATFORM_IOS)
    assert push.audience.WhichOneof("audience") == "everyone"
    assert (push.period_s, push.qps) == (60, 0)
    message = push.message
    assert (message.is_notif, message.content, message.extra) == (True, "世", "e")
    assert message.ios == IosStyle(badge=3, sound="default", content_available=True, category="c")


async def test_absent_fields_have_their_defaults(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    await legacy.ios(ios_app, message="m")
    push = await only_push(installation)
    assert push.period_s == ios_app.default_period_s
    assert (push.message.is_notif, push.message.HasField("extra")) == (True, False)
    assert push.message.ios == IosStyle(sound="default")


async def test_a_transparent_broadcast_shows_nothing(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    await legacy.ios(ios_app, message="m", transparent=1, **{"content-available": 0})
    message = (await only_push(installation)).message
    assert not message.is_notif
    assert message.ios == IosStyle(content_available=False)


async def test_a_dictionary_stays_a_dictionary(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    dictionary = {"title": "世", "loc-args": ["a", 1, 10**25], "nested": {"x": None}}
    await legacy.ios(ios_app, message=dictionary)
    message = (await only_push(installation)).message
    assert message.ios.content_is_json
    assert json.loads(message.content) == dictionary
    assert "世" in message.content


async def test_a_single_token(legacy: LegacyClient, installation: EdgeInstallation, ios_app: App) -> None:
    """`extra`, `transparent` and `content-available` are for several devices only."""
    await installation.device(ios_app, TOKEN)
    only_for_many = {"extra": "e", "transparent": 1, "content-available": 1}
    answer = await legacy.ios(ios_app, message="m", token=TOKEN, badge=1, category="c", **only_for_many)
    assert answer == {"result": 0, "desc": "send ok", "msgid": answer["msgid"]}
    push = await only_push(installation)
    (place,) = await device_numbers(installation, ios_app, TOKEN)
    assert (push.kind, push.id_count, targets(push.audience.devices)) == (KIND_UNICAST, 1, [(*place, 0)])
    assert (push.message.is_notif, push.message.HasField("extra")) == (True, False)
    assert push.message.ios == IosStyle(badge=1, sound="default", category="c")


def failed(msgid: int, pos: int, token: str = UNKNOWN) -> dict[str, Any]:
    return {"msgid": msgid, "result": 401, "pos": pos, "token": token, "desc": "token not found"}


async def test_a_list_of_tokens(legacy: LegacyClient, installation: EdgeInstallation, ios_app: App) -> None:
    """Unknown tokens are skipped and named; a repeated token gets the message again."""
    await installation.device(ios_app, TOKEN)
    answer = await legacy.ios(
        ios_app, message="m", token=[UNKNOWN, TOKEN, TOKEN], extra="e", transparent="1", **{"content-available": "1"}
    )
    assert answer == {
        "result": 0,
        "desc": "send ok",
        "msgid": answer["msgid"],
        "details": [failed(answer["msgid"], 0)],
    }
    push = await only_push(installation)
    (place,) = await device_numbers(installation, ios_app, TOKEN)
    assert (push.kind, push.msgid, push.id_count) == (KIND_UNICAST, answer["msgid"], 3)
    assert targets(push.audience.devices) == [(*place, 1), (*place, 2)]
    assert (push.message.is_notif, push.message.extra) == (False, "e")
    assert push.message.ios.content_available


async def test_a_list_with_more_tokens_than_a_push_has_message_ids_is_several_pushes(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    await installation.device(ios_app, TOKEN)
    answer = await legacy.ios(ios_app, message="m", token=[*[UNKNOWN] * SLOT_IDS, TOKEN, UNKNOWN])
    first, second = await installation.sent()
    assert answer.pop("details") == [
        *(failed(first.msgid + at, at) for at in range(SLOT_IDS)),
        failed(second.msgid + 1, SLOT_IDS + 1),
    ]
    assert answer == {"result": 0, "desc": "send ok", "msgid": answer["msgid"]}
    (place,) = await device_numbers(installation, ios_app, TOKEN)
    assert (first.msgid, first.id_count, targets(first.audience.devices)) == (answer["msgid"], SLOT_IDS, [])
    assert (second.id_count, targets(second.audience.devices)) == (2, [(*place, 0)])
    assert first.message == second.message


async def test_a_single_unknown_token_leaves_nothing_in_the_log(
    legacy: LegacyClient, installation: EdgeInstallation, ios_app: App
) -> None:
    for fields in ({}, {"message": {"body": "b"}}):
        body: dict[str, Any] = {"message": "m", "token": UNKNOWN, **fields}
        assert await legacy.ios(ios_app, **body) == {"result": 401, "desc": "token not found"}
    assert not await installation.sent()
    assert (await legacy.ios(ios_app, message="m", token=[UNKNOWN]))["result"] == 0
