"""Timed tasks over HTTP: listed, read and cancelled; a caller reads its own writes."""

import asyncio
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from testkit.edge.role import NOW_MS, ZONE, EdgeInstallation
from testkit.edge.v2_bodies import broadcast, push_to

NO_TASK = "input error: task_key: there is no such timed task of these apps"


def time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, ZoneInfo(ZONE)).strftime("%Y-%m-%d %H:%M:%S")


def android(app: App) -> dict[str, Any]:
    return {"appkey": {"android": app.appkey}}


async def create(installation: EdgeInstallation, app: App, content: str = "hello", in_s: int = 90) -> str:
    body = broadcast(app, option={"timed": 2, "send_time_interval": in_s})
    body["msgStyle"]["basic"]["content"] = content
    key: str = (await installation.push(body, app.appkey))["task_key"]
    return key


async def listed(installation: EdgeInstallation, app: App, **fields: Any) -> dict[str, Any]:
    body = {**android(app), "page_num": 1, "page_size": 50, **fields}
    return await installation.call("POST", "/v2/timedtasklist", body, app.appkey)


async def detail(installation: EdgeInstallation, app: App, key: str) -> dict[str, Any]:
    return await installation.call("POST", "/v2/timedtaskdetail", {**android(app), "task_key": key}, app.appkey)


async def cancel(installation: EdgeInstallation, app: App, key: str) -> dict[str, Any]:
    return await installation.call("DELETE", "/v2/timed", {**android(app), "task_key": key}, app.appkey)


async def test_a_record_has_its_times_in_the_services_zone(installation: EdgeInstallation) -> None:
    app = await installation.app()
    key = await create(installation, app, "你好")
    record = {
        "TaskKey": key,
        "CreateTime": time_text(NOW_MS),
        "SendTime": time_text(NOW_MS + 90_000),
        "MsgContent": "你好",
        "Status": "unsend",
    }
    assert await detail(installation, app, key) == {"result": 0, "data": [record]}
    assert await listed(installation, app) == {"result": 0, "data": [record], "pagecount": 1}


async def test_pages_by_creation_both_ways(installation: EdgeInstallation) -> None:
    app, other = await installation.app(), await installation.app()
    keys = []
    for number in range(7):
        installation.clock.move(1)
        keys.append(await create(installation, app, str(number), in_s=1000 - number))
        await create(installation, other)
    for order, wanted in ((0, keys), (1, keys[::-1]), (None, keys)):
        found = []
        for page in (1, 2, 3, 4):
            answer = await listed(installation, app, order=order, page_num=page, page_size=3)
            assert (answer["result"], answer["pagecount"]) == (0, 3)
            found.append([record["TaskKey"] for record in answer["data"]])
        assert [len(page_keys) for page_keys in found] == [3, 3, 1, 0]
        assert [key for page_keys in found for key in page_keys] == wanted


PAGES: list[tuple[dict[str, Any], str | None]] = [
    ({"page_num": 2**31 - 1, "page_size": 50, "order": 1}, None),
    ({"page_size": 1}, None),
    ({"page_num": 0}, "page_num must be an integer from 1 to 2147483647"),
    ({"page_num": 2**31}, "page_num must be an integer from 1 to 2147483647"),
    ({"page_num": 10**30}, "page_num must be an integer from 1 to 2147483647"),
    ({"page_num": None}, "page_num must be an integer"),
    ({"page_num": "x"}, "page_num must be an integer"),
    ({"page_num": "0"}, "page_num must be an integer from 1 to 2147483647"),
    ({"page_size": 0}, "page_size must be an integer from 1 to 50"),
    ({"page_size": 51}, "page_size must be an integer from 1 to 50"),
    ({"order": 2}, "order must not be 2"),
    ({"order": "a"}, "order must be an integer"),
]


async def test_limits_of_a_page(installation: EdgeInstallation) -> None:
    for fields, problem in PAGES:
        app = await installation.app()
        answer = await listed(installation, app, **fields)
        if problem is None:
            assert answer == {"result": 0, "data": [], "pagecount": 0}
        else:
            assert answer == {"result": 400, "desc": f"input error: {problem}"}


REQUIRED = ["page_num", "page_size", "appkey"]


async def test_required_fields_of_a_list(installation: EdgeInstallation) -> None:
    for missing in REQUIRED:
        app = await installation.app()
        body = {**android(app), "page_num": 1, "page_size": 50}
        del body[missing]
        answer = await installation.call("POST", "/v2/timedtasklist", body, app.appkey)
        assert answer == {"result": 400, "desc": f"input error: {missing} is missing"}


APPKEYS: list[tuple[Any, str]] = [
    ("{android}", "appkey must be an object"),
    ({}, "appkey must name an app of android or ios"),
    ({"ios": []}, "appkey.ios must be a string or a list of strings"),
    ({"android": ["{android}"]}, "appkey.android must be a string"),
    ({"android": True}, "appkey.android must be a string"),
    ({"ios": ["1", "1"]}, "appkey.ios names an app twice"),
    ({"ios": [str(number) for number in range(101)]}, "appkey.ios must have at most 100 entries"),
]


async def test_rules_of_the_appkey_object(installation: EdgeInstallation) -> None:
    for appkey, problem in APPKEYS:
        for path, method in (("timedtasklist", "POST"), ("timedtaskdetail", "POST"), ("timed", "DELETE")):
            body = {"appkey": appkey, "page_num": 1, "page_size": 1, "task_key": "k"}
            answer = await installation.call(method, f"/v2/{path}", body)
            assert answer == {"result": 400, "desc": f"input error: {problem}"}


async def test_a_task_to_both_platforms_is_reached_through_either_app(installation: EdgeInstallation) -> None:
    app, first, second = (
        await installation.app(),
        await installation.app(PLATFORM_IOS),
        await installation.app(PLATFORM_IOS),
    )
    keys = [first.appkey, second.appkey]
    body = push_to(app, 0, ios=keys)
    body["msgStyle"]["basic"]["content"] = {"android": "a", "ios": "i"}
    body["option"] = {"timed": 2, "send_time_interval": 90}
    key = (await installation.push(body, app.appkey, *keys))["task_key"]
    cases: list[tuple[Any, tuple[str, ...], str]] = [
        ({"android": app.appkey}, (app.appkey,), "a"),
        ({"android": int(app.appkey)}, (app.appkey,), "a"),
        ({"ios": first.appkey}, (first.appkey,), "i"),
        ({"ios": [second.appkey]}, (second.appkey,), "i"),
        ({"android": app.appkey, "ios": keys[::-1]}, (app.appkey, *keys[::-1]), "a"),
    ]
    for appkey, signers, content in cases:
        asked = {"appkey": appkey, "task_key": key, "page_num": 1, "page_size": 50}
        for path in ("/v2/timedtaskdetail", "/v2/timedtasklist"):
            (record,) = (await installation.call("POST", path, asked, *signers))["data"]
            assert (record["TaskKey"], record["MsgContent"]) == (key, content)
    asked = {"appkey": {"ios": second.appkey}, "task_key": key}
    answer = await installation.call("DELETE", "/v2/timed", asked, second.appkey)
    assert answer == {"result": 0, "desc": "cancel succ"}
    assert (await detail(installation, app, key))["data"][0]["Status"] == "cancel"


async def test_a_cancel_is_visible_at_once_and_succeeds_once(installation: EdgeInstallation) -> None:
    app = await installation.app()
    key = await create(installation, app)
    assert await cancel(installation, app, key) == {"result": 0, "desc": "cancel succ"}
    assert (await detail(installation, app, key))["data"][0]["Status"] == "cancel"
    assert (await listed(installation, app))["data"][0]["Status"] == "cancel"
    again = await cancel(installation, app, key)
    assert again == {"result": 400, "desc": "input error: task_key: the task was cancelled already"}
    installation.clock.move(91)
    other = await create(installation, app)
    assert (await detail(installation, app, other))["data"][0]["Status"] == "unsend"
    assert not await installation.sent()


async def test_of_concurrent_cancels_one_succeeds(installation: EdgeInstallation) -> None:
    app = await installation.app()
    key = await create(installation, app)
    answers = await asyncio.gather(*(cancel(installation, app, key) for _ in range(8)))
    assert sorted(answer["result"] for answer in answers) == [0] + [400] * 7


async def test_a_sent_task_cannot_be_cancelled(installation: EdgeInstallation) -> None:
    app = await installation.app()
    key = await create(installation, app, in_s=1)
    installation.clock.move(1)
    await installation.until_sent(1)
    assert (await detail(installation, app, key))["data"][0]["Status"] == "send"
    answer = await cancel(installation, app, key)
    assert answer == {"result": 400, "desc": "input error: task_key: the task was sent already"}


async def test_a_task_of_another_app_is_not_found(installation: EdgeInstallation) -> None:
    app, other = await installation.app(), await installation.app()
    key = await create(installation, app)
    for asked in (key, "0" * 32, "x"):
        assert await cancel(installation, other, asked) == {"result": 400, "desc": NO_TASK}
        assert await detail(installation, other, asked) == {"result": 400, "desc": NO_TASK}
    assert (await listed(installation, other))["data"] == []
    assert (await detail(installation, app, key))["data"][0]["Status"] == "unsend"
    assert len(await installation.tasks()) == 1, "what cannot be cancelled is not worth a command"


TASK_KEYS: list[tuple[Any, str]] = [
    (None, "task_key must be a string"),
    ("", "task_key must not be empty"),
    (7, "task_key must be a string"),
    (["k"], "task_key must be a string"),
    ("k" * 65, "task_key must have at most 64 characters"),
]


async def test_rules_of_the_task_key(installation: EdgeInstallation) -> None:
    for task_key, problem in TASK_KEYS:
        app = await installation.app()
        for path, method in (("timedtaskdetail", "POST"), ("timed", "DELETE")):
            answer = await installation.call(method, f"/v2/{path}", {**android(app), "task_key": task_key}, app.appkey)
            assert answer == {"result": 400, "desc": f"input error: {problem}"}
            answer = await installation.call(method, f"/v2/{path}", android(app), app.appkey)
            assert answer == {"result": 400, "desc": "input error: task_key is missing"}


async def test_fifty_large_tasks_are_one_page(installation: EdgeInstallation) -> None:
    app = await installation.app()
    keys = await asyncio.gather(*(create(installation, app, "x" * 100_000) for _ in range(50)))
    answer = await listed(installation, app)
    assert {record["TaskKey"] for record in answer["data"]} == set(keys)
