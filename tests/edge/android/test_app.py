"""POST /push and /timed_msg of the legacy Android interface: the answers, and the commands in the log."""

from typing import Any

import pytest

from protos.push.v1.push_pb2 import (
    ATTRIBUTE_BRAND,
    COMPARISON_GREATER,
    KIND_BROADCAST,
    KIND_MULTICAST,
    KIND_UNICAST,
    ActivityClause,
    AndroidStyle,
    AttributeClause,
    Filter,
    TagGroup,
)
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.scheduling.v1.scheduling_pb2 import TASK_STATUS_CANCELLED, GetTaskRequest, Task
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from testkit.edge.legacy_client import LegacyClient
from testkit.edge.push_rules import minutes_from_now
from testkit.edge.role import NOW_MS, EdgeInstallation
from testkit.edge.sent_pushes import device_numbers, only_push, targets
from testkit.waiting import until


async def test_a_broadcast_with_every_field(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    style = {"title": "t", "sound": True, "vibrate": True, "unremovable": True, "click_action": "open_url"}
    body = {"is_notif": "1", "message": "世", "period": "3600", "qps": "50", "extra": "free", "open_url": 'http://u/"'}
    answer = await legacy.android(android_app, **body, **style)
    assert answer == {"result": 0, "desc": "send ok", "msgid": answer["msgid"]}
    push = await only_push(installation)
    assert (push.msgid, push.id_count) == (answer["msgid"], 1)
    assert (push.appkey, push.platform, push.kind) == (android_app.appkey, PLATFORM_ANDROID, KIND_BROADCAST)
    assert push.audience.WhichOneof("audience") == "everyone"
    assert (push.period_s, push.qps) == (3600, 50)
    assert '"qps":"50"' in push.request_json
    assert "sign" not in push.request_json
    message = push.message
    assert (message.is_notif, message.content, message.extra) == (True, "世", "free")
    assert message.android == AndroidStyle(
        title="t", sound=True, vibrate=True, removable=False, click_action=2, click_param_json='"http://u/\\""'
    )


async def test_absent_fields_have_their_defaults(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    await legacy.android(android_app, message="m")
    await legacy.android(android_app, message="m", is_notif=1)
    silent, shown = await installation.sent()
    assert (silent.period_s, silent.qps) == (android_app.default_period_s, 0)
    assert (silent.message.is_notif, silent.message.HasField("extra")) == (False, False)
    assert silent.message.android == AndroidStyle()
    assert shown.message.android == AndroidStyle(title=android_app.name, removable=True)


CLICKS: list[tuple[dict[str, Any], int, str]] = [
    ({"click_action": "open_app", "open_app": True}, 1, ""),
    ({"click_action": "open_url", "open_url": "http://u"}, 2, '"http://u"'),
    ({"click_action": "intent", "intent": "intent:#x"}, 3, '"intent:#x"'),
    ({"is_upgrade_download": 1, "download_url": "http://d"}, 8, '"http://d"'),
    (
        {"is_upgrade_download": "1", "download_url": "http://d", "click_action": "open_app", "open_app": True},
        8,
        '"http://d"',
    ),
    ({"is_upgrade_download": 0, "download_url": "http://d"}, 0, ""),
    ({}, 0, ""),
]


async def test_clicks(legacy: LegacyClient, installation: EdgeInstallation, android_app: App) -> None:
    for fields, _, _ in CLICKS:
        await legacy.android(android_app, message="m", is_notif=1, **fields)
    styles = [push.message.android for push in await installation.sent()]
    found = [(style.click_action, style.click_param_json) for style in styles]
    assert found == [(action, param) for _, action, param in CLICKS]


async def test_a_pass_through_message_has_only_content_and_extra(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    await legacy.android(android_app, message="m", extra="e", title="t", sound=True, is_upgrade_download=1)
    message = (await only_push(installation)).message
    assert (message.is_notif, message.extra, message.android) == (False, "e", AndroidStyle())


@pytest.mark.parametrize(
    ("fields", "filtered"),
    [
        ({"filter": [1, "-2"]}, Filter(tags=[TagGroup(tags=[1, -2])])),
        ({"filter_v2": [[1, 2], ["3"]]}, Filter(tags=[TagGroup(tags=[1, 2]), TagGroup(tags=[3])])),
        (
            {"filter": [7], "optfilter": {"phone": ["b"], "activity_7": {">": 2}}},
            Filter(
                tags=[TagGroup(tags=[7])],
                attributes=[AttributeClause(attribute=ATTRIBUTE_BRAND, values=["b"])],
                activity=[ActivityClause(days=7, comparison=COMPARISON_GREATER, opens=2)],
            ),
        ),
    ],
)
async def test_multicasts(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App, fields: dict[str, Any], filtered: Filter
) -> None:
    answer = await legacy.android(android_app, message="m", qps=9, **fields)
    assert answer == {"result": 0, "desc": "send ok", "msgid": answer["msgid"]}
    push = await only_push(installation)
    assert (push.msgid, push.kind, push.qps) == (answer["msgid"], KIND_MULTICAST, 0)
    assert push.audience.filter == filtered


async def test_a_list_of_tokens(legacy: LegacyClient, installation: EdgeInstallation, android_app: App) -> None:
    for token in ("a", "b"):
        await installation.device(android_app, token)
    answer = await legacy.android(android_app, message="m", qps=1, token=["a", "nobody", "b", "a"])
    first = answer["details"][0]["msgid"]
    sent = {"result": 0, "desc": "send ok"}
    assert answer == {
        "result": 0,
        "desc": "send ok",
        "details": [
            {"pos": 0, "token": "a", "msgid": first, **sent},
            {"pos": 1, "token": "nobody", "msgid": first + 1, "result": 401, "desc": "token not found"},
            {"pos": 2, "token": "b", "msgid": first + 2, **sent},
            {"pos": 3, "token": "a", "msgid": first + 3, **sent},
        ],
    }
    push = await only_push(installation)
    assert (push.kind, push.msgid, push.id_count, push.qps) == (KIND_UNICAST, first, 4, 0)
    a, b = await device_numbers(installation, android_app, "a", "b")
    assert targets(push.audience.devices) == [(*a, 0), (*b, 2), (*a, 3)]


async def test_a_single_token(legacy: LegacyClient, installation: EdgeInstallation, android_app: App) -> None:
    await installation.device(android_app, "a")
    answer = await legacy.android(android_app, message="m", token="a")
    entry = {"pos": 0, "token": "a", "msgid": answer["msgid"], "result": 0, "desc": "send ok"}
    assert answer == {"result": 0, "desc": "send ok", "msgid": answer["msgid"], "details": [entry]}
    unknown = await legacy.android(android_app, message="m", token="nobody")
    (entry,) = unknown.pop("details")
    assert unknown == {"result": 0, "desc": "send ok"}
    assert (entry["pos"], entry["token"], entry["result"], entry["desc"]) == (0, "nobody", 401, "token not found")


async def test_a_token_of_another_app_is_unknown(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    other = await installation.app()
    await installation.device(other, "theirs")
    answer = await legacy.android(android_app, message="m", token=["theirs"])
    assert [entry["result"] for entry in answer["details"]] == [401]


async def test_aliases(legacy: LegacyClient, installation: EdgeInstallation, android_app: App) -> None:
    for token in ("old", "new"):
        await installation.device(android_app, token, "alice")
    await installation.device(android_app, "b", "bob")
    body = {"message": "m", "alias": ["alice", "nobody", "bob", "alice"]}
    answer = await legacy.android(android_app, **body)
    everywhere = await legacy.android(android_app, **body, alias_send_all="1")
    assert answer == {
        "result": 0,
        "desc": "send ok",
        "msgid": answer["msgid"],
        "details": [
            {"alias": "alice", "succ_num": 1, "fail_num": 0},
            {"alias": "nobody", "succ_num": 0, "fail_num": 1},
            {"alias": "bob", "succ_num": 1, "fail_num": 0},
        ],
    }
    assert [(each["alias"], each["succ_num"]) for each in everywhere["details"]] == [
        ("alice", 2),
        ("nobody", 0),
        ("bob", 1),
    ]
    one, all_of_them = await installation.sent()
    old, new, bob = await device_numbers(installation, android_app, "old", "new", "b")
    assert (one.kind, one.msgid, one.id_count) == (KIND_UNICAST, answer["msgid"], 1)
    assert set(targets(one.audience.devices)) == {(*new, 0), (*bob, 0)}
    assert set(targets(all_of_them.audience.devices)) == {(*old, 0), (*new, 0), (*bob, 0)}


async def test_a_single_alias(legacy: LegacyClient, installation: EdgeInstallation, android_app: App) -> None:
    await installation.device(android_app, "a", "alice")
    answer = await legacy.android(android_app, message="m", alias="alice")
    assert answer["details"] == [{"alias": "alice", "succ_num": 1, "fail_num": 0}]


async def test_tokens_and_aliases_in_one_request(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    await installation.device(android_app, "a", "alice")
    answer = await legacy.android(android_app, message="m", alias=["alice"], token=["nobody", "a"])
    by_token, by_alias = await installation.sent()
    assert answer == {
        "result": 0,
        "desc": "send ok",
        "msgid": by_alias.msgid,
        "details": [
            {"pos": 0, "token": "nobody", "msgid": by_token.msgid, "result": 401, "desc": "token not found"},
            {"pos": 1, "token": "a", "msgid": by_token.msgid + 1, "result": 0, "desc": "send ok"},
            {"alias": "alice", "succ_num": 1, "fail_num": 0},
        ],
    }
    assert by_alias.msgid >= by_token.msgid + 2
    assert [bool(push.request_json) for push in (by_token, by_alias)] == [True, False]


async def test_an_appkey_may_be_a_number(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    answer = await legacy.android(android_app, message="m", appkey=int(android_app.appkey))
    assert answer["result"] == 0
    assert (await only_push(installation)).appkey == android_app.appkey


async def test_a_timed_message_and_its_cancel(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    fields = {"message": "later", "alias": ["alice"], "token": "t", "send_time": minutes_from_now(11)}
    answer = await legacy.android(android_app, "/timed_msg", **fields)
    key = answer["task_key"]
    assert answer == {"result": 0, "desc": "ok", "task_key": key}
    assert not await installation.sent()
    scheduled = await task(installation, key, android_app)
    assert scheduled.due_ms == NOW_MS // 60_000 * 60_000 + 660_000
    by_token, by_alias = scheduled.pushes
    assert (list(by_token.audience.tokens.tokens), list(by_alias.audience.aliases.aliases)) == (["t"], ["alice"])
    cancelled = {"result": 0, "desc": "cancel succ"}
    assert await legacy.android(android_app, "/timed_msg", "DELETE", task_key=key) == cancelled
    assert (await task(installation, key, android_app)).status == TASK_STATUS_CANCELLED
    again = await legacy.android(android_app, "/timed_msg", "DELETE", task_key=key)
    assert (again["result"], again["desc"][:13]) == (400, "input error: ")


async def test_a_timed_message_cannot_be_cancelled_by_another_app_or_when_it_was_sent(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    other = await installation.app()
    answer = await legacy.android(android_app, "/timed_msg", message="m", send_time=minutes_from_now(11))
    of_other = await legacy.android(other, "/timed_msg", "DELETE", task_key=answer["task_key"])
    unknown = await legacy.android(other, "/timed_msg", "DELETE", task_key="0" * 32)
    assert of_other == unknown
    assert of_other["result"] == 400
    installation.clock.move(660)
    await until(installation.sent)
    late = await legacy.android(android_app, "/timed_msg", "DELETE", task_key=answer["task_key"])
    assert late["result"] == 400


async def task(installation: EdgeInstallation, key: str, app: App) -> Task:
    scheduling = SchedulingServiceStub(installation.context.peers.all("scheduling")[0])
    found: Task = (await scheduling.GetTask(GetTaskRequest(task_key=key, appkeys=[app.appkey]))).task
    return found
