"""POST /v2/push over HTTP, to every kind of audience: the answers, and the commands in the log."""

import asyncio
import json

from protos.push.v1.push_pb2 import (
    ATTRIBUTE_BRAND,
    ATTRIBUTE_REGION,
    COMPARISON_GREATER_OR_EQUAL,
    IMPORTANCE_HIGH,
    KIND_BROADCAST,
    KIND_MULTICAST,
    KIND_UNICAST,
    ActivityClause,
    AndroidStyle,
    AttributeClause,
    BrandModel,
    Filter,
    ModelClause,
    StagGroup,
    TagGroup,
)
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, ROUTE_VENDOR
from services.delivery.state.audience_parts import alias_of_target
from testkit.apns.tokens import ios_token
from testkit.edge.role import EdgeInstallation
from testkit.edge.sent_pushes import device_numbers, only_push, targets
from testkit.edge.v2_bodies import broadcast, push_to
from testkit.signing import reference_text


async def test_broadcast_to_android_with_every_field(installation: EdgeInstallation) -> None:
    app = await installation.app()
    style = {"title": "t", "sound": True, "vibrate": True, "unremovable": True, "badge": -1}
    channel = {"route": "vendor", "importance": "high", "category": "IM"}
    option = {"period": 3600, "qps": 50, "label": "spring", "channel": channel}
    body = broadcast(app, extra="free", option=option)
    body["msgStyle"]["android"] = {**style, "click_action": 2, "click_param": 'http://u/"世"'}
    answer = await installation.push(body, app.appkey)
    assert answer == {"result": 0, "desc": "send ok", "id": answer["id"]}
    push = await only_push(installation)
    assert (push.msgid, push.id_count) == (answer["id"], 1)
    assert 0 < push.msgid < 2**53
    assert (push.appkey, push.platform, push.kind) == (app.appkey, PLATFORM_ANDROID, KIND_BROADCAST)
    assert push.audience.WhichOneof("audience") == "everyone"
    assert (push.period_s, push.qps, push.task_key) == (3600, 50, "")
    assert (push.channel.route, push.channel.importance, push.channel.category) == (ROUTE_VENDOR, IMPORTANCE_HIGH, "IM")
    assert push.label == "spring"
    assert push.request_json == reference_text(json.dumps(body).encode())
    message = push.message
    assert (message.is_notif, message.content, message.extra) == (True, "hello", "free")
    assert (message.android.title, message.android.badge, message.android.click_action) == ("t", -1, 2)
    assert (message.android.sound, message.android.vibrate, message.android.removable) == (True, True, True)
    assert message.android.click_param_json == '"http://u/\\"世\\""'


async def test_absent_fields_have_their_defaults(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.push(broadcast(app), app.appkey)
    push = await only_push(installation)
    assert (push.period_s, push.qps) == (app.default_period_s, 0)
    assert not push.HasField("channel")
    android = push.message.android
    assert not push.message.HasField("extra")
    assert android == AndroidStyle(title=app.name)


async def test_broadcast_to_ios(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    body = push_to(None, 2, ios=app.appkey)
    body["msgStyle"]["ios"] = {"badge": 3, "content-available": 1, "category": "c"}
    answer = await installation.push(body, app.appkey)
    assert answer == {"result": 0, "desc": "send ok", "id": answer["id"]}
    push = await only_push(installation)
    assert (push.platform, push.message.WhichOneof("style")) == (PLATFORM_IOS, "ios")
    ios = push.message.ios
    assert (ios.badge, ios.content_available, ios.category, ios.sound) == (3, True, "c", "default")


async def test_content_by_platform(installation: EdgeInstallation) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    body = push_to(android, 0, ios=ios.appkey)
    body["msgStyle"]["basic"] = {"content": {"android": "a", "ios": "i"}, "is_notif": {"android": 1, "ios": 0}}
    answer = await installation.push(body, android.appkey, ios.appkey)
    first, second = await installation.sent()
    assert answer == {
        "result": 0,
        "android": {"result": 0, "desc": "send ok", "id": first.msgid},
        "ios": {"result": 0, "desc": "send ok", "id": second.msgid},
    }
    assert first.msgid < second.msgid
    assert (first.appkey, first.message.content, first.message.is_notif) == (android.appkey, "a", True)
    assert (second.appkey, second.message.content, second.message.is_notif) == (ios.appkey, "i", False)
    assert not second.message.ios.HasField("sound")
    assert first.request_json
    assert second.request_json == ""


async def test_several_ios_apps_are_answered_as_a_list(installation: EdgeInstallation) -> None:
    android = await installation.app()
    apps = [await installation.app(PLATFORM_IOS) for _ in range(2)]
    keys = [app.appkey for app in apps]
    answer = await installation.push(push_to(android, 0, ios=keys), android.appkey, *keys)
    assert [(entry["appkey"], entry["desc"]) for entry in answer["ios"]] == [(key, "send ok") for key in keys]
    assert [push.appkey for push in await installation.sent()] == [android.appkey, *keys]
    alone = await installation.push(push_to(None, 2, ios=keys), *keys)
    assert alone["id"] == alone["ios"][0]["id"]
    assert [set(entry) for entry in alone["ios"]] == [{"result", "desc", "id", "appkey"}] * 2
    assert set(alone) == {"result", "desc", "id", "ios"}


async def test_ios_apps_that_the_scope_ignores_change_nothing(installation: EdgeInstallation) -> None:
    android = await installation.app()
    ios = (await installation.app(PLATFORM_IOS)).appkey
    for ignored in ([ios], [], [""], [["x"]], [ios, ios], ["unknown"] * 101, {"x": 1}, True):
        for scope, fields in ((1, {}), (7, {"optfilter": {"android": {"phone": ["p"]}}})):
            body = push_to(android, scope, ios=ignored, **fields)
            answer = await installation.push(body, android.appkey)
            assert (set(answer), answer["desc"]) == ({"result", "desc", "id"}, "send ok"), (ignored, scope)
    assert {push.appkey for push in await installation.sent()} == {android.appkey}


async def test_filters(installation: EdgeInstallation) -> None:
    app = await installation.app()
    options = {
        "locate": ["北京市"],
        "phone_not": ["p", "q"],
        "model": [{"b": ["m", "n"]}],
        "activity_7": {">=": 3},
    }
    by_attribute = Filter(
        attributes=[
            AttributeClause(attribute=ATTRIBUTE_REGION, values=["北京市"]),
            AttributeClause(attribute=ATTRIBUTE_BRAND, values=["p", "q"], negated=True),
        ],
        models=[ModelClause(pairs=[BrandModel(brand="b", model="m"), BrandModel(brand="b", model="n")])],
        activity=[ActivityClause(days=7, comparison=COMPARISON_GREATER_OR_EQUAL, opens=3)],
    )
    flat = Filter(tags=[TagGroup(tags=[1, -2])], not_tags=[TagGroup(tags=[3]), TagGroup(tags=[4, 5])])
    stags = Filter(stags=[StagGroup(stags=["a", "b"]), StagGroup(stags=["c"])])
    both = Filter(not_stags=[StagGroup(stags=["d"])])
    both.MergeFrom(by_attribute)
    cases = [
        (push_to(app, 6, tag=[1, -2], not_tag=[[3], [4, 5]]), flat),
        (push_to(app, 6, stag=[["a", "b"], ["c"]]), stags),
        (push_to(app, 7, optfilter={"android": options}), by_attribute),
        (push_to(app, 8, not_stag=[["d"]], optfilter={"android": options, "ios": 7}), both),
    ]
    for body, _ in cases:
        assert (await installation.push(body, app.appkey))["desc"] == "send ok"
    pushes = await installation.sent()
    assert [push.audience.filter for push in pushes] == [wanted for _, wanted in cases]
    assert {push.kind for push in pushes} == {KIND_MULTICAST}


async def test_a_single_token(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "other")
    await installation.device(app, "known")
    answer = await installation.push(push_to(app, 5, token={"android": "known"}), app.appkey)
    sent = {"result": 0, "desc": "send ok", "id": answer["id"], "details": []}
    assert answer == {**sent, "android": sent}
    push = await only_push(installation)
    ((place,),) = [await device_numbers(installation, app, "known")]
    assert (push.kind, targets(push.audience.devices)) == (KIND_UNICAST, [(*place, 0)])


async def test_every_entry_of_a_token_list_has_its_own_id(installation: EdgeInstallation) -> None:
    app = await installation.app()
    for token in ("a", "b", "c"):
        await installation.device(app, token)
    asked = ["c", "nobody", "a", "c", "", "b"]
    answer = await installation.push(push_to(app, 5, token={"android": asked}), app.appkey)
    failed = {"result": 401, "desc": "token not found"}
    assert answer["result"] == 0
    assert answer["details"] == [
        {**failed, "pos": 1, "token": "nobody", "msgid": answer["id"] + 1},
        {**failed, "pos": 4, "token": "", "msgid": answer["id"] + 4},
    ]
    places = await device_numbers(installation, app, "c", "a", "c", "b")
    push = await only_push(installation)
    assert (push.msgid, push.id_count) == (answer["id"], 6)
    assert targets(push.audience.devices) == [
        (*place, offset) for place, offset in zip(places, (0, 2, 3, 5), strict=True)
    ]
    after = await installation.push(broadcast(app), app.appkey)
    assert after["id"] >= answer["id"] + 6


async def test_an_unknown_android_token_is_accepted_and_reported(installation: EdgeInstallation) -> None:
    app = await installation.app()
    answer = await installation.push(push_to(app, 5, token={"android": "nobody"}), app.appkey)
    assert (answer["result"], [entry["pos"] for entry in answer["details"]]) == (0, [0])
    assert targets((await only_push(installation)).audience.devices) == []


async def test_a_single_unknown_ios_token_is_refused_and_in_a_list_named(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    await installation.device(app, ios_token("known"))
    nobody = ios_token("nobody")
    alone = await installation.push(push_to(None, 5, ios=app.appkey, token={"ios": nobody}), app.appkey)
    assert alone == {"result": 401, "desc": "token not found"}
    assert not await installation.sent()
    listed = await installation.push(
        push_to(None, 5, ios=app.appkey, token={"ios": [nobody, ios_token("known")]}), app.appkey
    )
    failed = {"msgid": listed["id"], "result": 401, "pos": 0, "token": nobody, "desc": "token not found"}
    sent = {"result": 0, "desc": "send ok", "id": listed["id"], "details": [failed]}
    assert listed == {**sent, "ios": sent}
    push = await only_push(installation)
    assert [offset for *_, offset in targets(push.audience.devices)] == [1]
    known = await installation.push(push_to(None, 5, ios=app.appkey, token={"ios": [ios_token("known")]}), app.appkey)
    sent = {"result": 0, "desc": "send ok", "id": known["id"]}
    assert known == {**sent, "ios": sent}


async def test_tokens_of_both_platforms(installation: EdgeInstallation) -> None:
    """Each platform that is named has its object, and each iOS app of a list its entry, also without tokens."""
    android = await installation.app()
    first, second, third = [await installation.app(PLATFORM_IOS) for _ in range(3)]
    await installation.device(android, "a")
    await installation.device(second, ios_token("s"))
    keys = [first.appkey, third.appkey, second.appkey]
    tokens = {"android": "a", "ios": {second.appkey: [ios_token("s")], first.appkey: ios_token("nobody")}}
    answer = await installation.push(push_to(android, 5, ios=keys, token=tokens), android.appkey, *keys)
    sent = await installation.sent()
    assert [push.appkey for push in sent] == [android.appkey, second.appkey]
    assert answer == {
        "result": 0,
        "android": {"result": 0, "desc": "send ok", "id": sent[0].msgid, "details": []},
        "ios": [
            {"appkey": first.appkey, "result": 401, "desc": "token not found"},
            {"appkey": third.appkey, "result": 0, "desc": "no token named"},
            {"appkey": second.appkey, "result": 0, "desc": "send ok", "id": sent[1].msgid},
        ],
    }
    one = await installation.push(push_to(android, 5, ios=keys, token={"android": "a"}), android.appkey, *keys)
    assert set(one["android"]) == {"result", "desc", "id", "details"}
    assert one["ios"] == [{"appkey": key, "result": 0, "desc": "no token named"} for key in keys]
    tokens = {"ios": {second.appkey: [ios_token("s")]}}
    listed = await installation.push(push_to(None, 5, ios=keys, token=tokens), *keys)
    assert (set(listed), listed["id"]) == ({"result", "desc", "id", "ios"}, listed["ios"][2]["id"])
    body = push_to(android, 5, ios=second.appkey, token={"ios": ios_token("s")})
    single = await installation.push(body, android.appkey, second.appkey)
    assert single["android"] == {"result": 0, "desc": "no token named", "details": []}
    assert set(single["ios"]) == {"result", "desc", "id"}


async def test_alias_to_the_most_recent_device_or_to_all(installation: EdgeInstallation) -> None:
    app = await installation.app()
    for token, alias in (("a1", "alice"), ("b1", "bob"), ("a2", "alice")):
        await installation.device(app, token, alias)
    recent = await installation.push(push_to(app, 3, alias=["alice", "bob", "alice", "carol"]), app.appkey)
    everywhere = await installation.push(push_to(app, 4, alias="alice"), app.appkey)
    assert recent == {"result": 0, "desc": "send ok", "id": recent["id"], "not_found": ["carol"]}
    assert everywhere["not_found"] == []
    first, second = await installation.sent()
    assert (first.id_count, first.kind) == (1, KIND_UNICAST)
    newest = [(*place, 0) for place in await device_numbers(installation, app, "a2", "b1")]
    assert sorted(targets(first.audience.devices)) == sorted(newest)
    both = [(*place, 0) for place in await device_numbers(installation, app, "a1", "a2")]
    assert sorted(targets(second.audience.devices)) == sorted(both)
    assert [alias_of_target(first, *place) for *place, _ in newest] == ["alice", "bob"]
    assert (list(second.audience.devices.aliases), second.audience.devices.alias_indexes) == (["alice"], b"")


async def test_alias_on_both_platforms(installation: EdgeInstallation) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    await installation.device(android, "a", "alice")
    body = push_to(android, 4, ios=ios.appkey, alias=["alice", "bob"])
    answer = await installation.push(body, android.appkey, ios.appkey)
    assert answer["android"]["not_found"] == ["bob"]
    assert answer["ios"]["not_found"] == ["alice", "bob"]
    first, second = await installation.sent()
    assert len(targets(first.audience.devices)) == 1
    assert targets(second.audience.devices) == []


async def test_a_thousand_tokens(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "known")
    asked = [f"unknown {index}" for index in range(999)] + ["known"]
    answer = await installation.push(push_to(app, 5, token={"android": asked}), app.appkey)
    assert [entry["pos"] for entry in answer["details"]] == list(range(999))
    push = await only_push(installation)
    assert [offset for *_, offset in targets(push.audience.devices)] == [999]


async def test_concurrent_pushes_have_their_own_ids_and_audiences(installation: EdgeInstallation) -> None:
    app = await installation.app()
    tokens = [f"t{index}" for index in range(20)]
    for token in tokens:
        await installation.device(app, token)
    bodies = [push_to(app, 5, token={"android": token}) for token in tokens * 5]
    answers = await asyncio.gather(*(installation.push(body, app.appkey) for body in bodies))
    assert all(answer["result"] == 0 and answer["details"] == [] for answer in answers)
    ids = [answer["id"] for answer in answers]
    pushes = await installation.sent()
    assert len(set(ids)) == 100
    assert [push.msgid for push in pushes] == sorted(ids), "the log's order is the ids' order"
    by_id = {push.msgid: targets(push.audience.devices) for push in pushes}
    places = await device_numbers(installation, app, *tokens)
    assert [by_id[msgid] for msgid in ids] == [[(*place, 0)] for place in places * 5]
