"""Quotas of an app: over one, HTTP 429 with Retry-After, and nothing is done."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import edge.main
from edge.settings import EdgeSettings
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import QuotasChange, UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.apps import APPS_PARTITION
from services.domain.topics import DEVICE_COMMANDS, decode
from services.log.port import Partition
from services.net.http.server import HttpListener
from testkit import plain_http
from testkit.edge.role import BACKENDS, PARTITIONS, ZONE, EdgeInstallation, edge_installation
from testkit.edge.v2_bodies import broadcast, push_to
from testkit.services import running_services
from testkit.signing import signed
from testkit.waiting import until

IN_AN_HOUR = {"timed": 2, "send_time_interval": 3600}


async def limited(installation: EdgeInstallation, app: App, **quotas: Any) -> App:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    change = UpdateAppRequest(appkey=app.appkey, quotas=QuotasChange(**quotas))
    return (await registry.UpdateApp(change)).app


async def send(
    installation: EdgeInstallation, body: dict[str, Any], *apps: App, path: str = "/v2/push", **headers: str
) -> httpx.Response:
    content = signed(body, *(installation.secrets[app.appkey] for app in apps))
    return await installation.http.post(path, content=content, headers=headers)


def check_refused(answer: httpx.Response, desc: str, retry_after_s: int) -> None:
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == str(retry_after_s)
    assert answer.headers["content-type"] == "application/json;charset=utf-8"
    assert answer.json() == {"result": 429, "desc": f"{desc}; try again in {retry_after_s} s"}


async def test_requests_a_second(installation: EdgeInstallation) -> None:
    app, other = await limited(installation, await installation.app(), requests_per_s=2), await installation.app()
    body = broadcast(app)
    answers = [await send(installation, body, app) for _ in range(3)]
    assert [answer.json()["result"] for answer in answers] == [0, 0, 429]
    check_refused(answers[2], f"app {app.appkey} is over its quota of 2 requests a second", 1)
    assert (await send(installation, broadcast(other), other)).json()["result"] == 0
    listing = {"appkey": {"android": app.appkey}, "page_num": 1, "page_size": 1}
    assert (await send(installation, listing, app, path="/v2/timedtasklist")).status_code == 429
    legacy = signed({"appkey": app.appkey, "message": "m"}, installation.secrets[app.appkey])
    assert (await installation.android.post("/push", content=legacy)).status_code == 429
    assert len(await installation.sent()) == 3
    installation.clock.move(0.5)
    assert (await send(installation, body, app)).json()["result"] == 0
    await limited(installation, app, requests_per_s=0)
    assert [(await send(installation, body, app)).json()["result"] for _ in range(3)] == [0, 0, 0]


async def reached_quotas(installation: EdgeInstallation) -> set[tuple[str, str, int]]:
    """Return app, quota and limit of each reached quota that is recorded."""
    page = await installation.log.select({APPS_PARTITION: 0}, 10_000)
    facts = [decode(record).quota_reached for record in page.records]
    return {(fact.appkey, fact.quota, fact.limit) for fact in facts if fact.appkey}


async def test_what_is_refused_is_recorded_as_a_reached_quota(installation: EdgeInstallation) -> None:
    fast = await limited(installation, await installation.app(), requests_per_s=1)
    wide = await limited(installation, await installation.app(), targets_per_s=1)
    later = await limited(installation, await installation.app(), stored_task_bytes=1)
    full = await limited(installation, await installation.app(PLATFORM_IOS), devices=1)
    for _ in range(3):
        await send(installation, broadcast(fast), fast)
        await send(installation, push_to(wide, 3, alias=["alice"]), wide)
    await send(installation, {**broadcast(later), "option": IN_AN_HOUR}, later)
    for digit in "ab":
        body = signed({"appkey": full.appkey, "token": digit * 64}, installation.secrets[full.appkey])
        await installation.ios.post("/register", content=body)
    expected = {
        (fast.appkey, "requests_per_s", 1),
        (wide.appkey, "targets_per_s", 1),
        (later.appkey, "stored_task_bytes", 1),
        (full.appkey, "devices", 1),
    }

    async def are_recorded() -> bool:
        return await reached_quotas(installation) == expected

    await until(are_recorded)


async def test_a_wrong_sign_uses_up_nobodys_quota(installation: EdgeInstallation) -> None:
    app = await limited(installation, await installation.app(), requests_per_s=1)
    for _ in range(3):
        wrong = await installation.http.post("/v2/push", content=signed(broadcast(app), "not the secret"))
        assert wrong.json()["result"] == 401
    assert (await send(installation, broadcast(app), app)).json()["result"] == 0


async def test_every_entry_of_a_list_is_a_target(installation: EdgeInstallation) -> None:
    app = await limited(installation, await installation.app(), targets_per_s=10)
    await installation.device(app, "t1", "alice")
    tokens = push_to(app, 5, token={"android": ["t1"] * 6})
    assert (await send(installation, tokens, app)).json()["result"] == 0
    refused = await send(installation, push_to(app, 3, alias=["alice", "b", "c", "d", "e"]), app)
    check_refused(refused, f"app {app.appkey} is over its quota of 10 targets a second", 1)
    assert (await send(installation, push_to(app, 3, alias=["alice", "b", "c", "d"]), app)).json()["result"] == 0
    timed = {**tokens, "option": IN_AN_HOUR}
    assert (await send(installation, timed, app)).status_code == 429
    assert len(await installation.sent()) == 2
    assert not await installation.tasks()
    installation.clock.move(1)
    both = {"appkey": app.appkey, "message": "m", "token": ["t1"] * 6, "alias": ["alice", "b", "c", "d"]}
    for status in (200, 429):
        legacy = signed(both, installation.secrets[app.appkey])
        assert (await installation.android.post("/push", content=legacy)).status_code == status


async def test_every_platform_of_a_request_is_counted_or_none(installation: EdgeInstallation) -> None:
    android = await limited(installation, await installation.app(), requests_per_s=2, targets_per_s=2)
    ios = await limited(installation, await installation.app(PLATFORM_IOS), targets_per_s=1)
    both = push_to(android, 0, ios.appkey)
    assert (await send(installation, both, android, ios)).json()["result"] == 0
    refused = await send(installation, both, android, ios)
    check_refused(refused, f"app {ios.appkey} is over its quota of 1 targets a second", 1)
    installation.clock.move(0.5)
    assert (await send(installation, broadcast(android), android)).json()["result"] == 0
    assert {push.appkey for push in (await installation.sent())[:2]} == {android.appkey, ios.appkey}
    assert len(await installation.sent()) == 3


async def test_broadcasts_a_day(installation: EdgeInstallation) -> None:
    app, other = await limited(installation, await installation.app(), broadcasts_per_day=4), await installation.app()
    await installation.device(app, "t1", "alice")
    body = broadcast(app)
    later = {**body, "option": IN_AN_HOUR}
    keyed = {"Idempotency-Key": "K"}
    first = await send(installation, body, app, **keyed)
    assert (await send(installation, body, app, **keyed)).json() == first.json(), "a repeat is no broadcast"
    by_filter = push_to(app, 6, not_tag=[[99]])
    answers = [await send(installation, each, app) for each in (by_filter, later, body)]
    assert [answer.json()["result"] for answer in answers] == [0, 0, 0]
    commands = len(await installation.sent()), len(await installation.tasks())
    # 22:13:31 in Asia/Shanghai: the day ends in 1:46:29.
    for refused in (
        await send(installation, body, app),
        await send(installation, by_filter, app),
        await send(installation, later, app),
        await send(installation, body, app, **{"Idempotency-Key": "another"}),
    ):
        check_refused(refused, f"app {app.appkey} is over its quota of 4 broadcasts a day", 6390)
    assert (len(await installation.sent()), len(await installation.tasks())) == commands
    assert (await send(installation, push_to(app, 3, alias="alice"), app)).json()["result"] == 0
    assert (await send(installation, broadcast(other), other)).json()["result"] == 0
    installation.clock.move(6390)
    assert (await send(installation, body, app)).json()["result"] == 0


async def test_concurrent_broadcasts_do_not_exceed_the_quota(installation: EdgeInstallation) -> None:
    app = await limited(installation, await installation.app(), broadcasts_per_day=5)
    answers = await asyncio.gather(*(send(installation, broadcast(app), app) for _ in range(15)))
    assert sorted(answer.json()["result"] for answer in answers) == [0] * 5 + [429] * 10
    assert len(await installation.sent()) == 5


async def test_stored_bytes_of_timed_tasks(installation: EdgeInstallation) -> None:
    app = await installation.app()
    later = {**broadcast(app), "option": IN_AN_HOUR}
    later["msgStyle"] = {"basic": {"content": "x" * 1000, "is_notif": 0}}
    first = (await send(installation, later, app)).json()
    size = (await installation.tasks())[0].create.pushes[0].ByteSize()
    await limited(installation, app, stored_task_bytes=3 * size)
    answers = await asyncio.gather(*(send(installation, later, app) for _ in range(6)))
    assert sorted(answer.json()["result"] for answer in answers) == [0, 0, *[429] * 4]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "60"
    assert refused.json()["desc"] == (
        f"app {app.appkey} is over its quota of {3 * size} stored bytes of timed messages: {3 * size} are stored and"
        f" this one needs {size}; try again when some have been sent or cancelled"
    )
    assert (await send(installation, broadcast(app), app)).json()["result"] == 0, "what is sent at once is not stored"
    keyed = {"Idempotency-Key": "K"}
    assert (await send(installation, later, app, **keyed)).status_code == 429
    assert len(await installation.tasks()) == 3
    cancel = {"appkey": {"android": app.appkey}, "task_key": first["task_key"]}
    assert (await installation.call("DELETE", "/v2/timed", cancel, app.appkey))["result"] == 0
    assert (await send(installation, later, app, **keyed)).json()["result"] == 0
    assert (await send(installation, later, app)).status_code == 429
    installation.clock.move(3600)
    await installation.until_sent(4)
    assert (await send(installation, later, app)).json()["result"] == 0


@pytest.mark.parametrize("path", ["/register", "/device/v1"])
async def test_ios_devices_over_the_quota_are_refused(installation: EdgeInstallation, path: str) -> None:
    app = await limited(installation, await installation.app(PLATFORM_IOS), devices=2)

    async def register(token: str) -> httpx.Response:
        if path == "/register":
            body = signed({"appkey": app.appkey, "token": token}, installation.secrets[app.appkey])
            return await installation.ios.post(path, content=body)
        hello = {"type": "hello", "appkey": app.appkey, "token": token}
        return await installation.http.post(path, json=hello)

    tokens = [digit * 64 for digit in "abc"]
    assert [(await register(token)).status_code for token in tokens[:2]] == [200, 200]
    refused = await register(tokens[2])
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "600")
    desc = f"app {app.appkey} is over its quota of 2 devices; try again in 600 s"
    assert refused.json() in ({"result": 429, "desc": desc}, {"type": "error", "code": 429, "desc": desc})
    known = await register(tokens[0])
    assert (known.status_code, known.json().get("result", 0)) == (200, 0), "existing devices go on"
    assert (await register(tokens[2])).status_code == 429


async def test_edges_count_broadcasts_and_stored_bytes_together(installation: EdgeInstallation, tmp_path: Path) -> None:
    app = await installation.app()
    body = broadcast(app)
    later = signed({**body, "option": IN_AN_HOUR}, installation.secrets[app.appkey])
    assert (await installation.post(later))["result"] == 0
    size = (await installation.tasks())[0].create.pushes[0].ByteSize()
    await limited(installation, app, broadcasts_per_day=7, stored_task_bytes=3 * size)
    settings = EdgeSettings(
        data_dir=str(tmp_path / "second"), partitions=PARTITIONS, v2_port=0, android_port=0, ios_port=0, timezone=ZONE
    )
    services = edge.main.build(settings, installation.context).services
    async with running_services(services, stop_at_once=True):
        (port,) = [each.port for each in services if isinstance(each, HttpListener) and each.name == "v2 interface"]
        async with plain_http.async_client(base_url=f"http://127.0.0.1:{port}", timeout=20) as second:
            edges = [installation.http, second] * 4
            stored = [(await each.post("/v2/push", content=later)).json()["result"] for each in edges]
            now = signed(body, installation.secrets[app.appkey])
            sent = [(await each.post("/v2/push", content=now)).json()["result"] for each in edges]
    assert stored == [0, 0, *[429] * 6]
    assert sent == [0, 0, 0, 0, 0, 429, 429, 429]


@pytest.mark.parametrize("path", ["/register", "/device/v1"])
async def test_new_ios_devices_have_a_rate_that_known_ones_do_not_take(tmp_path: Path, path: str) -> None:
    async with edge_installation(tmp_path, BACKENDS, registrations_per_minute=1) as installation:
        app = await installation.app(PLATFORM_IOS)

        async def register(number: int) -> httpx.Response:
            token = f"{number:064x}"
            if path == "/device/v1":
                return await installation.http.post(path, json={"type": "hello", "appkey": app.appkey, "token": token})
            fields = {"appkey": app.appkey, "token": token}
            content = signed(fields, installation.secrets[app.appkey])
            return await installation.ios.post(path, content=content)

        codes = [(await register(number)).status_code for number in (1, 2, 3, 4, 5, 5, 1)]
        assert codes == [200] * 7
        commands = await installation.log.ends([Partition(DEVICE_COMMANDS.name, each) for each in range(PARTITIONS)])
        refused = await register(6)
        assert (refused.status_code, refused.json().get("result", refused.json().get("code"))) == (429, 429)
        assert 60 <= int(refused.headers["retry-after"]) < 180
        assert await installation.log.ends(commands) == commands
        installation.clock.move(60)
        assert (await register(6)).status_code == 200


async def test_devices_over_http_have_a_rate_for_each_address(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"registrations_per_minute_per_address": 1, "trusted_proxies": "127.0.0.1"}
    async with edge_installation(tmp_path, BACKENDS, **settings) as installation:
        app = await installation.app(PLATFORM_IOS)

        async def hello(number: int, address: str) -> int:
            body = {"type": "hello", "appkey": app.appkey, "token": f"{number:064x}"}
            headers = {"X-Forwarded-For": address}
            return (await installation.http.post("/device/v1", json=body, headers=headers)).status_code

        assert [await hello(number, f"2001:db8:1:{number}::1") for number in range(6)] == [200] * 5 + [429]
        assert await hello(7, "2001:db8:2::1") == 200
