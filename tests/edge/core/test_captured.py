"""Replays of a captured body: its sign covers neither the path, nor the method, nor the interface, nor the time."""

from typing import Any

import httpx
import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.registry_pb2 import UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from testkit.edge.role import EdgeInstallation
from testkit.edge.v2_bodies import broadcast
from testkit.signing import signed

DAYS_400_S = 400 * 86_400
IOS_TOKEN = "ab" * 32


async def replay(
    http: httpx.AsyncClient, body: bytes, path: str, method: str = "POST", **headers: str
) -> dict[str, Any]:
    """Send a captured body, whose sender's secret the replay does not know."""
    answer: dict[str, Any] = (await http.request(method, path, content=body, headers=headers)).json()
    return answer


async def test_a_push_is_sent_again_for_ever_with_or_without_an_idempotency_key(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "t1")
    body = signed(broadcast(app), installation.secrets[app.appkey])
    key = {"Idempotency-Key": "1"}
    assert (await replay(installation.http, body, "/v2/push", **key))["result"] == 0
    assert (await replay(installation.http, body, "/v2/push", **key))["result"] == 0
    assert len(await installation.until_sent(1)) == 1
    assert (await replay(installation.http, body, "/v2/push"))["result"] == 0
    assert (await replay(installation.http, body, "/v2/push", **{"Idempotency-Key": "2"}))["result"] == 0
    installation.clock.move(DAYS_400_S)
    assert (await replay(installation.http, body, "/v2/push"))["result"] == 0
    assert len(await installation.until_sent(4)) == 4


async def test_a_timed_message_can_be_sent_at_once(installation: EdgeInstallation) -> None:
    app = await installation.app()
    fields = {"appkey": app.appkey, "message": "m", "is_notif": 0, "send_time": "2026-09-22 12:00"}
    body = signed(fields, installation.secrets[app.appkey])
    assert (await replay(installation.android, body, "/timed_msg"))["result"] == 0
    assert await installation.sent() == []
    assert (await replay(installation.android, body, "/push"))["result"] == 0
    assert len(await installation.sent()) == 1


async def test_a_question_about_a_task_can_cancel_it(installation: EdgeInstallation) -> None:
    app = await installation.app()
    later = broadcast(app, option={"timed": 2, "send_time_interval": 3600})
    task_key = (await installation.push(later, app.appkey))["task_key"]
    body = signed({"appkey": {"android": app.appkey}, "task_key": task_key}, installation.secrets[app.appkey])
    assert (await replay(installation.http, body, "/v2/timedtaskdetail"))["data"][0]["Status"] == "unsend"
    assert (await replay(installation.http, body, "/v2/timed", "DELETE"))["result"] == 0
    assert (await replay(installation.http, body, "/v2/timedtaskdetail"))["data"][0]["Status"] == "cancel"


async def test_added_tags_can_be_taken_away_and_given_back(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "t1")
    secret = installation.secrets[app.appkey]
    body = signed({"appkey": app.appkey, "action": "stag", "params": {"t1": ["x"]}}, secret)
    question = signed({"appkey": app.appkey, "action": "stag", "params": ["t1"]}, secret)
    for method, tags in (("POST", ["x"]), ("DELETE", []), ("POST", ["x"])):
        assert (await replay(installation.http, body, "/v2/device", method))["result"] == 0
        found = await replay(installation.http, question, "/v2/deviceinfo")
        assert found["detailsinfo"][0]["infolist"] == tags


async def test_a_registration_or_a_unicast_can_remove_the_ios_device_it_names(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    secret = installation.secrets[app.appkey]
    registration = signed({"appkey": app.appkey, "token": IOS_TOKEN}, secret)
    unicast = signed({"appkey": app.appkey, "token": IOS_TOKEN, "message": "m"}, secret)
    for captured in (registration, unicast):
        assert (await replay(installation.ios, registration, "/register"))["result"] == 0
        assert (await replay(installation.ios, unicast, "/push"))["result"] == 0
        assert (await replay(installation.ios, captured, "/register", "DELETE"))["result"] == 0
        assert (await replay(installation.ios, unicast, "/push"))["desc"] == "token not found"


async def test_bodies_with_an_appkey_at_the_top_read_the_invalid_tokens_of_their_app(
    installation: EdgeInstallation,
) -> None:
    """The one call of v2 that needs no further field; a body of the legacy iOS interface reaches it too."""
    app = await installation.app(PLATFORM_IOS)
    body = signed({"appkey": app.appkey, "token": IOS_TOKEN, "message": "m"}, installation.secrets[app.appkey])
    answer = await replay(installation.http, body, "/v2/errortoken")
    assert (answer["result"], answer["data"]) == (0, {app.appkey: []})


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_a_captured_query_sends_nothing_anywhere(installation: EdgeInstallation, method: str) -> None:
    app = await installation.app()
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, ack_info_enabled=True))
    secret = installation.secrets[app.appkey]
    queries: list[dict[str, Any]] = [
        {"appkey": app.appkey, "pos": "0", "reqno": 10},
        {"appkey": app.appkey, "type": 1, "param": {"msgid": -1}},
        {"appkey": app.appkey, "action": "stag", "params": ["t1"]},
        {"appkey": {"android": app.appkey}, "page_num": 1, "page_size": 10},
    ]
    for body in (signed(query, secret) for query in queries):
        for path in ("/push", "/timed_msg"):
            assert (await replay(installation.android, body, path, method))["result"] == 400
        for path in ("/push", "/register"):
            assert (await replay(installation.ios, body, path, method))["result"] in (400, 401, 405)
        if method == "POST":
            assert (await replay(installation.http, body, "/v2/push"))["result"] == 400
    assert await installation.sent() == []
    assert await installation.tasks() == []


async def test_a_body_is_worth_nothing_with_another_field_another_app_or_a_new_secret(
    installation: EdgeInstallation,
) -> None:
    app, other = await installation.app(), await installation.app()
    body = signed(broadcast(app), installation.secrets[app.appkey])
    for changed in (body.replace(b"hello", b"hallo"), body.replace(app.appkey.encode(), other.appkey.encode())):
        assert (await replay(installation.http, changed, "/v2/push"))["result"] == 401
    assert await installation.sent() == []


async def test_an_android_body_is_refused_by_the_ios_interface_and_the_other_way_round(
    installation: EdgeInstallation,
) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    for app, http in ((android, installation.ios), (ios, installation.android)):
        body = signed({"appkey": app.appkey, "message": "m", "is_notif": 0}, installation.secrets[app.appkey])
        assert (await replay(http, body, "/push"))["result"] == 401
