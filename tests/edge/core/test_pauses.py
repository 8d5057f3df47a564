"""New pushes of a paused app are 403 on all three interfaces, and nothing of them is in the log."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import services.delivery.main
import services.delivery.settings
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import PauseAppsRequest, ResumeAppsRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.apps import AppDirectory
from services.errors import UnavailableError
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.edge.v2_bodies import broadcast, push_to
from testkit.signing import signed

MESSAGE = {"message": "hello", "is_notif": 1}


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[EdgeInstallation]:
    delivery = (services.delivery.settings.DeliverySettings, services.delivery.main.build)
    async with edge_installation(tmp_path, {**BACKENDS, "delivery": delivery}) as installation:
        yield installation


async def pause(installation: EdgeInstallation, app: App | None = None) -> None:
    """Pause the app, or all apps."""
    target = {"appkey": app.appkey} if app else {"all_apps": True}
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    answer = await registry.PauseApps(PauseAppsRequest(**target, reason="the secret leaked"))
    assert not answer.unconfirmed


async def resume(installation: EdgeInstallation, app: App | None = None) -> None:
    target = {"appkey": app.appkey} if app else {"all_apps": True}
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.ResumeApps(ResumeAppsRequest(**target))


async def send(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], secret: str, method: str = "POST", **headers: str
) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the answer to a signed request."""
    response = await http.request(method, path, content=signed(body, secret), headers=headers)
    assert response.headers["content-type"] == "application/json;charset=utf-8"
    return response.status_code, response.json()


async def test_pushes_and_timed_messages_of_a_paused_app_are_403_on_all_interfaces(
    installation: EdgeInstallation,
) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    secrets = installation.secrets
    timed = {"timed": 2, "send_time_interval": 60}
    requests = [
        (installation.http, "/v2/push", broadcast(android), android),
        (installation.http, "/v2/push", broadcast(android, option=timed), android),
        (installation.http, "/v2/push", push_to(None, 2, ios.appkey), ios),
        (installation.android, "/push", {"appkey": android.appkey, **MESSAGE}, android),
        (
            installation.android,
            "/timed_msg",
            {"appkey": android.appkey, **MESSAGE, "send_time": "2026-09-22 12:00"},
            android,
        ),
        (installation.ios, "/push", {"appkey": ios.appkey, "message": "hello"}, ios),
    ]
    for one_by_one in (True, False):
        for app in (android, ios) if one_by_one else (None,):
            await pause(installation, app)
        for http, path, body, app in requests:
            refusal = {"result": 403, "desc": f"app {app.appkey} is paused by the operator; nothing was sent"}
            assert await send(http, path, body, secrets[app.appkey]) == (403, refusal)
        assert await installation.sent() == []
        assert await installation.tasks() == []
        for app in (android, ios) if one_by_one else (None,):
            await resume(installation, app)
    for http, path, body, app in requests:
        status, answer = await send(http, path, body, secrets[app.appkey])
        assert (status, answer["result"]) == (200, 0)
    assert len(await installation.sent()) == 4
    assert len(await installation.tasks()) == 2


async def test_a_push_to_two_apps_of_which_one_is_paused_sends_nothing(installation: EdgeInstallation) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    await pause(installation, ios)
    content = signed(push_to(android, 0, ios.appkey), *(installation.secrets[app.appkey] for app in (android, ios)))
    response = await installation.http.post("/v2/push", content=content)
    assert (response.status_code, response.json()["result"]) == (403, 403)
    assert ios.appkey in response.json()["desc"]
    assert await installation.sent() == []
    assert (await installation.push(broadcast(android), android.appkey))["result"] == 0


async def test_everything_but_new_pushes_goes_on_while_an_app_is_paused(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = {"appkey": app.appkey}
    secret = installation.secrets[app.appkey]
    sent = await installation.push(broadcast(app), app.appkey)
    timed = await installation.push(broadcast(app, option={"timed": 2, "send_time_interval": 60}), app.appkey)
    await pause(installation, app)
    await installation.device(app, "token")
    tags = {"appkey": app.appkey, "action": "stag", "params": {"token": ["s"]}}
    task = {"appkey": {"android": app.appkey}, "task_key": timed["task_key"]}
    for http, method, path, request in (
        (installation.http, "POST", "/v2/device", tags),
        (installation.http, "POST", "/v2/timedtaskdetail", task),
        (installation.http, "DELETE", "/v2/timed", task),
        (installation.android, "DELETE", "/push", {**body, "msgid": sent["id"]}),
    ):
        status, answer = await send(http, path, request, secret, method)
        assert (status, answer["result"]) == (200, 0), (path, answer)
    assert await send(installation.http, "/v2/push", broadcast(app), "wrong") == (
        200,
        {"result": 401, "desc": "sign not correct"},
    )


async def test_a_request_accepted_before_the_pause_gets_its_answer_again_under_its_idempotency_key(
    installation: EdgeInstallation,
) -> None:
    app = await installation.app()
    secret = installation.secrets[app.appkey]
    key = {"Idempotency-Key": "k1"}
    first = await send(installation.http, "/v2/push", broadcast(app), secret, **key)
    await pause(installation, app)
    assert await send(installation.http, "/v2/push", broadcast(app), secret, **key) == first
    status, _ = await send(installation.http, "/v2/push", broadcast(app), secret, **{"Idempotency-Key": "k2"})
    assert status == 403
    await resume(installation, app)
    status, answer = await send(installation.http, "/v2/push", broadcast(app), secret, **{"Idempotency-Key": "k2"})
    assert (status, answer["result"]) == (200, 0), "a refused request takes no key"
    assert len(await installation.until_sent(2)) == 2


async def test_an_edge_that_has_not_read_the_resume_yet_reads_it_before_it_refuses(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await installation.app()
    await pause(installation, app)
    refreshed: list[bool] = []

    async def resumed_meanwhile(self: AppDirectory) -> None:
        refreshed.append(True)
        monkeypatch.undo()
        await resume(installation, app)

    monkeypatch.setattr(AppDirectory, "refresh", resumed_meanwhile)
    assert (await installation.push(broadcast(app), app.appkey))["result"] == 0
    assert refreshed == [True]


async def test_while_the_log_does_not_answer_a_pause_may_have_ended_and_nobody_is_refused(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await installation.app()
    await pause(installation, app)

    async def unavailable(_: object) -> None:
        raise UnavailableError("the log does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(installation.log, "ends", unavailable)
        assert (await installation.push(broadcast(app), app.appkey))["result"] == 500
    assert (await send(installation.http, "/v2/push", broadcast(app), installation.secrets[app.appkey]))[0] == 403
    assert await installation.sent() == []
