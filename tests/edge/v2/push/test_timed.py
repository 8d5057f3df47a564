"""Timed pushes: a task that scheduling has applied when the push is answered; its targets are unresolved."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.scheduling.v1.scheduling_pb2 import TASK_STATUS_UNSENT, GetTaskRequest, Task
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from testkit.edge.role import NOW_MS, ZONE, EdgeInstallation
from testkit.edge.v2_bodies import broadcast, push_to


async def task(installation: EdgeInstallation, task_key: str, appkey: str) -> Task:
    scheduling = SchedulingServiceStub(installation.context.peers.all("scheduling")[0])
    found: Task = (await scheduling.GetTask(GetTaskRequest(task_key=task_key, appkeys=[appkey]))).task
    return found


async def test_a_minute_in_the_time_zone_of_the_service(installation: EdgeInstallation) -> None:
    app = await installation.app()
    option = {"timed": 1, "send_time": "2026-12-31 23:59", "qps": 7}
    answer = await installation.push(broadcast(app, option=option), app.appkey)
    assert set(answer) == {"result", "desc", "id", "task_key"}
    assert len(bytes.fromhex(answer["task_key"])) == 16
    scheduled = await task(installation, answer["task_key"], app.appkey)
    moment = datetime(2026, 12, 31, 23, 59, tzinfo=ZoneInfo(ZONE))
    assert (scheduled.due_ms, scheduled.status) == (moment.timestamp() * 1000, TASK_STATUS_UNSENT)
    (push,) = scheduled.pushes
    assert (push.msgid, push.task_key, push.qps) == (answer["id"], answer["task_key"], 7)
    assert push.request_json
    assert not await installation.sent()


async def test_an_interval_for_both_platforms(installation: EdgeInstallation) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    body = push_to(android, 3, ios=[ios.appkey], alias=["alice", "alice"])
    body["option"] = {"timed": 2, "send_time_interval": 90}
    answer = await installation.push(body, android.appkey, ios.appkey)
    key = answer["task_key"]
    assert answer["android"]["task_key"] == key
    assert [entry["task_key"] for entry in answer["ios"]] == [key]
    assert answer["android"]["not_found"] == ["alice"]
    for app in (android, ios):
        assert (await task(installation, key, app.appkey)).due_ms == NOW_MS + 90_000
    (command,) = await installation.tasks()
    pushes = command.create.pushes
    assert [push.appkey for push in pushes] == [android.appkey, ios.appkey]
    assert [push.msgid for push in pushes] == [answer["android"]["id"], answer["ios"][0]["id"]]
    assert not pushes[0].audience.aliases.all_devices
    assert [bool(push.request_json) for push in pushes] == [True, False]


@pytest.mark.parametrize("count", [1, 3])
async def test_tokens_stay_unresolved_and_keep_an_id_each(installation: EdgeInstallation, count: int) -> None:
    """Tokens that are unknown at the request are told at once, and looked up again when the task is due."""
    app = await installation.app()
    await installation.device(app, "later 1")
    tokens = [f"later {index}" for index in range(count)]
    body = push_to(app, 5, token={"android": tokens})
    body["option"] = {"timed": 2, "send_time_interval": 1}
    answer = await installation.push(body, app.appkey)
    assert [(failed["pos"], failed["token"]) for failed in answer["details"]] == [
        (pos, token) for pos, token in enumerate(tokens) if pos != 1
    ]
    (push,) = (await task(installation, answer["task_key"], app.appkey)).pushes
    assert (list(push.audience.tokens.tokens), push.id_count) == (tokens, count)
    assert (await installation.push(broadcast(app), app.appkey))["id"] >= answer["id"] + count
