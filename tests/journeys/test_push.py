"""A push from end to end: signed request in, frame on the device, acknowledgement, audit."""

import asyncio
import json
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from testkit.device import VirtualDevice
from testkit.gateway.websocket import DeviceClient
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.otlp_receiver import OtlpReceiver, ReceivedSpan
from testkit.installation.processes import CARILLON, Installation
from testkit.waiting import until
from tests.journeys.conftest import SHARDS_BEFORE_RELEASES

Connect = Callable[..., Awaitable[VirtualDevice]]
ANALYTICS_S = 240
"""The bound of an answer of analytics: the embedded store has a low priority, so beside busy cores it takes long."""


@pytest.fixture
async def connect(carillon: Installation, app: AppCredentials) -> AsyncIterator[Connect]:
    """Return a function that connects devices of the app; they are closed at the end."""
    devices: list[VirtualDevice] = []

    async def make(
        alias: str | None = None, tags: list[int] | None = None, stags: list[str] | None = None, **attributes: str
    ) -> VirtualDevice:
        device = VirtualDevice(carillon.gateway_url, app.appkey, attributes=attributes)
        devices.append(device)
        await device.connect()
        assert (await device.events.get())["type"] == "welcome"
        if alias:
            assert (await device.request({"type": "set_alias", "alias": alias}))["type"] == "ok"
        if tags:
            assert (await device.request({"type": "add_tags", "tags": tags}))["type"] == "ok"
        if stags:
            assert (await device.request({"type": "add_stags", "stags": stags}))["type"] == "ok"
        return device

    yield make
    for device in devices:
        await device.close()


def message(app: AppCredentials, scope: int, content: str, option: dict[str, Any] | None = None, **target: Any) -> Any:
    return {
        "sendTo": {"appkey": {"android": app.appkey}, "userScope": scope, **target},
        "msgStyle": {"basic": {"content": content, "is_notif": 1}, "android": {"title": "T", "sound": True}},
        "option": {"period": 600, **(option or {})},
    }


async def shown(device: VirtualDevice, seconds: float = 60) -> dict[str, Any]:
    """Return the next push that the device receives."""
    async with asyncio.timeout(seconds):
        while (event := await device.events.get())["type"] != "push":
            pass
    return event


async def shows_nothing_but(device: VirtualDevice, server: AppServer, app: AppCredentials) -> None:
    """Assert that no earlier push reaches the device: a push to its token arrives next."""
    marker = f"marker {device.token}"
    await server.push(message(app, 5, marker, token={"android": device.token}), app.secret_key)
    assert (await shown(device))["content"] == marker


async def audited(carillon: Installation, msgid: int, *events: str) -> dict[str, Any]:
    """Return the audit of a push once its timeline has all these events."""

    async def complete() -> dict[str, Any] | None:
        text = await asyncio.to_thread(carillon.carillon, "audit", "push", str(msgid), "--json", check=False)
        report: dict[str, Any] = json.loads(text) if text.strip() else {"timeline": []}
        return report if {entry["event"] for entry in report["timeline"]} >= set(events) else None

    found: dict[str, Any] = await until(complete, ANALYTICS_S)
    return found


def noted_stages(carillon: Installation, msgid: int) -> list[str]:
    """Return the stages that the processes have noted for a push, by the time at which it first reached them."""
    lines = [line.split() for file in (carillon.data / "stages").iterdir() for line in file.read_text().splitlines()]
    keys = {str(msgid)} | {request_id for stage, key, request_id, _ in lines if key == str(msgid)} - {"-"}
    by_time = sorted((int(time_ns), stage) for stage, key, _, time_ns in lines if key in keys)
    return list(dict.fromkeys(stage for _, stage in by_time))


async def check_traced(collector: OtlpReceiver, msgid: int) -> None:
    """Check that one trace leads from the request for the push to the device's acknowledgement."""

    async def complete() -> list[ReceivedSpan] | None:
        spans = collector.trace_with(msgid)
        parents = {span.parent_id for span in spans if span.parent_id}
        has_parents = parents <= {span.span_id for span in spans}
        return spans if has_parents and "device acknowledgement" in {span.name for span in spans} else None

    spans = await until(complete)
    by_id = {span.span_id: span for span in spans}
    span = next(span for span in spans if span.name == "device acknowledgement")
    names = [span.name]
    while span.parent_id:
        span = by_id[span.parent_id]
        names.append(span.name)
    assert names == ["device acknowledgement", "gateway write", "delivery start", "POST /v2/push"]
    by_name = Counter(span.name for span in spans)
    assert by_name.pop("delivery start") in (1, 2), "one for each instance of delivery that read the push"
    assert set(by_name.values()) == {1}
    assert all(span.start_ns <= span.end_ns for span in spans)


async def test_a_push_arrives_is_acknowledged_and_audited(
    carillon: Installation, app: AppCredentials, server: AppServer, connect: Connect, collector: OtlpReceiver
) -> None:
    device = await connect(alias="alice", stags=["news"])
    answer = await server.push(message(app, 6, "Guten Tag", stag=[["news"]]), app.secret_key)
    assert answer["result"] == 0
    push = await shown(device)
    assert push["msgid"] == answer["id"]
    assert (push["content"], push["title"], push["sound"], push["is_notif"]) == ("Guten Tag", "T", True, 1)
    noted = noted_stages(carillon, answer["id"])
    assert "appended" in noted
    in_order = ["read", "signed", "resolved", "followed", "started", "handed"]
    assert [stage for stage in noted if stage != "appended"] == in_order, "delivery may be as fast as the edge's answer"
    await check_traced(collector, answer["id"])
    body = message(app, 3, "only once", alias="alice")
    with_key = await server.call("POST", "/v2/push", body, app.secret_key, headers={"Idempotency-Key": "once"})
    assert (await shown(device))["msgid"] == with_key["id"]
    await check_traced(collector, with_key["id"])
    report = await audited(carillon, answer["id"], "command", "audience", "sent", "received", "shown")
    counts = {entry["event"]: int(entry["count"]) for entry in report["timeline"]}
    assert (counts["audience"], counts["sent"], counts["received"]) == (1, 1, 1)
    assert app.secret_key not in json.dumps(report)


async def test_each_scope_reaches_exactly_its_devices(app: AppCredentials, server: AppServer, connect: Connect) -> None:
    alice, bob, carol = await asyncio.gather(
        connect(alias="alice", tags=[1, 2], region="北京市", os_version="14"),
        connect(alias="bob", tags=[1], stags=["news"], region="上海市", os_version="14"),
        connect(stags=["news", "sport"], region="北京市", os_version="13"),
    )
    everyone = [alice, bob, carol]
    pushes: list[tuple[Any, list[VirtualDevice]]] = [
        (message(app, 1, "all Android"), everyone),
        (message(app, 3, "alias, most active", alias=["alice"]), [alice]),
        (message(app, 4, "alias, all", alias=["alice", "bob"]), [alice, bob]),
        (message(app, 5, "token", token={"android": carol.token}), [carol]),
        (message(app, 5, "tokens", token={"android": [alice.token, carol.token]}), [alice, carol]),
        (message(app, 6, "tags", tag=[[1, 2], [7]]), [alice]),
        (message(app, 6, "tags but not", tag=[[1]], not_tag=[[2]]), [bob]),
        (message(app, 6, "stags", stag=[["news", "sport"]]), [carol]),
        (message(app, 7, "region", optfilter={"android": {"locate": ["北京市"]}}), [alice, carol]),
        (message(app, 8, "tag in region", tag=[[1]], optfilter={"android": {"locate": ["北京市"]}}), [alice]),
        (message(app, 7, "version not", optfilter={"android": {"osversion_not": ["14"]}}), [carol]),
    ]
    for body, audience in pushes:
        answer = await server.push(body, app.secret_key)
        assert answer["result"] == 0, answer
        for device in everyone:
            if device in audience:
                assert (await shown(device))["content"] == body["msgStyle"]["basic"]["content"]
            else:
                await shows_nothing_but(device, server, app)


@SHARDS_BEFORE_RELEASES
async def test_an_offline_device_receives_its_messages_in_order_when_it_reconnects(
    carillon: Installation, app: AppCredentials, server: AppServer, connect: Connect
) -> None:
    device = await connect(alias="zoe")
    token, key = device.token, device.key
    await device.close()
    sent = [
        await server.push(message(app, 3, "first", alias="zoe"), app.secret_key),
        await server.push(message(app, 1, "second"), app.secret_key),
        await server.push(message(app, 5, "third", token={"android": token}), app.secret_key),
    ]
    assert [answer["result"] for answer in sent] == [0, 0, 0]
    back = VirtualDevice(carillon.gateway_url, app.appkey, token=token, key=key)
    await back.connect()
    try:
        assert [(await shown(back))["content"] for _ in sent] == ["first", "second", "third"]
    finally:
        await back.close()


@pytest.mark.long
async def test_the_next_user_of_a_phone_gets_nothing_that_waited_for_the_one_before(
    carillon: Installation, app: AppCredentials, server: AppServer, connect: Connect
) -> None:
    device = await connect(alias="user before")
    token, key = device.token, device.key
    assert token
    assert key
    await device.close()
    sent = [
        await server.push(message(app, scope, "for the user before", alias="user before"), app.secret_key)
        for scope in (3, 4) * 12
    ]
    phone = await DeviceClient.connect(urlsplit(carillon.gateway_url).port or 0)
    assert (await phone.hello(app.appkey, token=token, key=key))["type"] == "welcome"
    phone.send(type="set_alias", id=1, alias="next user")
    before = []
    while (frame := await phone.next()) != {"type": "ok", "id": 1}:
        before.append(frame["msgid"])
    phone.send(type="ack", msgids=before)
    marker = await server.push(message(app, 3, "for the next user", alias="next user"), app.secret_key)
    assert (await phone.next())["msgid"] == marker["id"]
    phone.transport.disconnect(graceful=False)
    assert len(before) < len(sent)
    report = await audited(carillon, sent[-1]["id"], "dropped")
    assert [(state["state"], state["reason"]) for state in report["states"]] == [("dropped", "alias changed")]
    if before:
        report = await audited(carillon, before[0], "received")
        assert [state["state"] for state in report["states"]] == ["received"]


async def test_a_device_registered_after_a_broadcast_does_not_receive_it(
    app: AppCredentials, server: AppServer, connect: Connect
) -> None:
    before = await connect()
    await server.push(message(app, 1, "old news"), app.secret_key)
    assert (await shown(before))["content"] == "old news"
    after = await connect()
    await shows_nothing_but(after, server, app)


@SHARDS_BEFORE_RELEASES
async def test_unknown_aliases_and_tokens_are_reported(
    app: AppCredentials, server: AppServer, connect: Connect
) -> None:
    device = await connect(alias="known")
    by_alias = await server.push(message(app, 4, "a", alias=["known", "unknown"]), app.secret_key)
    assert (by_alias["result"], by_alias["not_found"]) == (0, ["unknown"])
    by_token = await server.push(message(app, 5, "t", token={"android": ["nobody", device.token]}), app.secret_key)
    assert by_token["result"] == 0
    assert [(entry["result"], entry["pos"], entry["token"]) for entry in by_token["details"]] == [(401, 0, "nobody")]
    assert [(await shown(device))["content"] for _ in range(2)] == ["a", "t"]


@SHARDS_BEFORE_RELEASES
async def test_a_wrong_sign_and_an_unknown_app_get_the_same_answer(app: AppCredentials, server: AppServer) -> None:
    wrong = await server.push(message(app, 1, "x"), "not the secret")
    unknown = await server.push(message(AppCredentials("1999999999", ""), 1, "x"), app.secret_key)
    assert wrong == unknown == {"result": 401, "desc": "sign not correct"}


async def test_timed_messages_are_sent_when_due(app: AppCredentials, server: AppServer, connect: Connect) -> None:
    device = await connect(alias="timed")
    option = {"timed": 2, "send_time_interval": 1}
    answer = await server.push(message(app, 3, "later", option, alias="timed"), app.secret_key)
    assert answer["result"] == 0
    assert answer["task_key"]
    assert (await shown(device))["content"] == "later"


@pytest.mark.long
@SHARDS_BEFORE_RELEASES
async def test_an_ios_message_goes_to_the_push_service(carillon: Installation, server: AppServer) -> None:
    app = carillon.create_app("ios")
    token = "ab" * 32
    welcome = await server.device_request({"type": "hello", "appkey": app.appkey, "token": token})
    assert (welcome["type"], welcome["token"], welcome["new"]) == ("welcome", token, True)
    body = {
        "sendTo": {"appkey": {"ios": app.appkey}, "userScope": 2},
        "msgStyle": {"basic": {"content": "Hello iPhone", "is_notif": 1}, "ios": {"badge": 3, "sound": "a.caf"}},
    }
    answer = await server.push(body, app.secret_key)
    assert answer["result"] == 0
    report = await audited(carillon, answer["id"], "command", "audience", "sent")
    assert {entry["event"]: int(entry["count"]) for entry in report["timeline"]}["sent"] == 1


@SHARDS_BEFORE_RELEASES
async def test_the_commands_of_the_getting_started_guide(carillon: Installation, app: AppCredentials) -> None:
    """`carillon device run`, `carillon send` and `carillon audit` work together as the documentation shows."""
    run = [CARILLON, "device", "run", "--appkey", app.appkey, "--alias", "a", "--stag", "s", "--json"]
    process = await asyncio.create_subprocess_exec(
        *run, env={**os.environ, **carillon.env}, stdout=subprocess.PIPE, cwd=carillon.data
    )
    assert process.stdout is not None
    try:
        seen: dict[str, Any] = {}
        while seen.get("type") not in ("ready", "welcome"):
            seen = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        body = json.dumps(message(app, 4, "from the command line", alias="a"))
        url = f"{carillon.v2_url}/v2/push"

        async def sent() -> dict[str, Any] | None:
            arguments = ("send", "--secret", app.secret_key, "--url", url, "-")
            answer: dict[str, Any] = json.loads(await asyncio.to_thread(carillon.carillon, *arguments, stdin=body))
            assert answer["result"] == 0
            return answer if not answer["not_found"] else None

        answer = await until(sent)
        while seen["type"] != "push":
            seen = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        assert (seen["msgid"], seen["content"]) == (answer["id"], "from the command line")
        await audited(carillon, answer["id"], "received")
    finally:
        process.terminate()
        await process.wait()
