"""Idempotency-Key: a repeated request gets the first answer and sends nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

import edge.main
import edge.settings
from edge.core.answers import Content
from edge.core.idempotency import HEADER, PushClaims
from edge.core.request_limiter import RequestLimiter
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from protos.scheduling.v1.scheduling_pb2 import Claim
from services.domain.topics import TASK_COMMANDS
from services.errors import UnavailableError
from services.log.port import NewRecord
from services.net.http.server import HttpListener
from testkit import plain_http
from testkit.apns.tokens import ios_token
from testkit.edge.role import PARTITIONS, ZONE, EdgeInstallation
from testkit.edge.v2_bodies import broadcast, push_to
from testkit.services import running_services
from testkit.signing import signed

USED = f"input error: {HEADER} was used with another request less than 10 minutes ago"
WINDOW_S = 600


async def push(
    installation: EdgeInstallation,
    body: dict[str, Any],
    *appkeys: str,
    key: str = "k",
    http: httpx.AsyncClient | None = None,
) -> dict[str, Any]:
    content = signed(body, *(installation.secrets[appkey] for appkey in appkeys))
    response = await (http or installation.http).post("/v2/push", content=content, headers={HEADER: key})
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    return answer


@asynccontextmanager
async def another_edge(installation: EdgeInstallation, directory: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run a second edge on the same log, as a second process would."""
    settings = edge.settings.EdgeSettings(
        data_dir=directory, partitions=PARTITIONS, timezone=ZONE, v2_port=0, android_port=0, ios_port=0
    )
    services = edge.main.build(settings, installation.context).services
    async with running_services(services):
        (listener,) = [each for each in services if isinstance(each, HttpListener) and each.name == "v2 interface"]
        async with plain_http.async_client(base_url=f"http://127.0.0.1:{listener.port}", timeout=20) as http:
            yield http


async def test_a_broadcast_keeps_its_turn_until_it_has_started_under_a_key_too(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    monkeypatch.setattr(
        RequestLimiter, "keep_until_started", lambda self, request, appkey, push: kept.append(push.msgid)
    )
    app = await installation.app()
    first = await push(installation, broadcast(app), app.appkey)
    assert await push(installation, broadcast(app), app.appkey) == first
    second = await push(installation, broadcast(app), app.appkey, key="another")
    assert kept == [first["id"], second["id"]]


async def test_a_repeat_gets_the_first_answer_and_sends_nothing(installation: EdgeInstallation) -> None:
    app = await installation.app()
    first = await push(installation, broadcast(app), app.appkey)
    assert first == {"result": 0, "desc": "send ok", "id": first["id"]}
    (sent,) = await installation.sent()
    assert (sent.msgid, sent.task_key, sent.appkey) == (first["id"], "", app.appkey)
    assert sent.request_json
    installation.clock.move(WINDOW_S - 1)
    assert await push(installation, broadcast(app), app.appkey) == first
    assert len(await installation.sent()) == 1
    installation.clock.move(1)
    later = await push(installation, broadcast(app), app.appkey)
    assert (later["result"], later["id"] > first["id"]) == (0, True)
    assert len(await installation.sent()) == 2
    listed = {"appkey": {"android": app.appkey}, "page_num": 1, "page_size": 50}
    assert (await installation.call("POST", "/v2/timedtasklist", listed, app.appkey))["data"] == []


async def test_without_the_header_nothing_changes(installation: EdgeInstallation) -> None:
    app = await installation.app()
    answers = [await installation.push(broadcast(app), app.appkey) for _ in range(2)]
    assert answers[0]["id"] < answers[1]["id"]
    assert [push.msgid for push in await installation.sent()] == [answer["id"] for answer in answers]
    assert not await installation.tasks()


async def test_another_body_under_the_same_key_is_refused(installation: EdgeInstallation) -> None:
    app = await installation.app()
    first = await push(installation, broadcast(app), app.appkey)
    assert await push(installation, broadcast(app, extra="x"), app.appkey) == {"result": 400, "desc": USED}
    reordered = dict(reversed(broadcast(app).items()))
    assert await push(installation, reordered, app.appkey) == first, "the order of keys is not signed either"
    assert len(await installation.sent()) == 1


async def test_each_key_and_each_app_is_its_own(installation: EdgeInstallation) -> None:
    app, other = await installation.app(), await installation.app()
    ids = [
        (await push(installation, broadcast(app), app.appkey, key="a"))["id"],
        (await push(installation, broadcast(app), app.appkey, key="b"))["id"],
        (await push(installation, broadcast(other), other.appkey, key="a"))["id"],
    ]
    assert sorted(push.msgid for push in await installation.sent()) == sorted(ids)
    assert len(set(ids)) == 3


async def test_the_first_answer_is_repeated_even_after_devices_changed(installation: EdgeInstallation) -> None:
    app, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    await installation.device(app, "known")
    body = push_to(app, 5, ios=ios.appkey, token={"android": ["known", "later", "known"], "ios": ios_token("later")})
    first = await push(installation, body, app.appkey, ios.appkey)
    assert [entry["token"] for entry in first["android"]["details"]] == ["later"]
    assert first["ios"] == {"result": 401, "desc": "token not found"}
    await installation.device(app, "later")
    await installation.device(ios, ios_token("later"))
    assert await push(installation, body, app.appkey, ios.appkey) == first
    assert len(await installation.sent()) == 1


async def test_a_request_without_an_audience_takes_no_key(installation: EdgeInstallation) -> None:
    ios = await installation.app(PLATFORM_IOS)
    body = push_to(None, 5, ios=ios.appkey, token={"ios": ios_token("later")})
    assert await push(installation, body, ios.appkey) == {"result": 401, "desc": "token not found"}
    await installation.device(ios, ios_token("later"))
    assert (await push(installation, body, ios.appkey))["result"] == 0


async def test_a_repeat_whose_token_was_removed_meanwhile_gets_the_answer_of_a_claim_that_is_decided_late(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scheduling is behind when the repeat looks for the claim; Apple has refused the token before."""
    ios, token = await installation.app(PLATFORM_IOS), ios_token("removed")
    await installation.device(ios, token)
    body = push_to(None, 5, ios=ios.appkey, token={"ios": token})
    first = await push(installation, body, ios.appkey)
    assert first["result"] == 0
    await installation.command(ios.appkey, token, DeviceCommand(remove=RemoveDevice(reason="unregistered")))
    first_answer, looks = PushClaims.first_answer, 0

    async def late(claims: PushClaims, claim: Claim) -> Content | None:
        nonlocal looks
        looks += 1
        return None if looks == 1 else await first_answer(claims, claim)

    monkeypatch.setattr(PushClaims, "first_answer", late)
    assert await push(installation, body, ios.appkey) == first
    assert await push(installation, body, ios.appkey, key="another") == {"result": 401, "desc": "token not found"}
    assert len(await installation.sent()) == 1


async def test_a_refused_request_takes_no_key(installation: EdgeInstallation) -> None:
    app = await installation.app()
    wrong = broadcast(app, option={"qps": -1})
    assert (await push(installation, wrong, app.appkey))["result"] == 400
    assert (await push(installation, broadcast(app), app.appkey))["result"] == 0
    unsigned = await push(installation, broadcast(app))
    assert unsigned == {"result": 401, "desc": "sign not correct"}, "only who can sign learns of a key"


async def test_a_timed_push_is_created_once_even_when_it_is_overdue(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = broadcast(app, option={"timed": 1, "send_time": "2026-09-21 22:15"})
    first = await push(installation, body, app.appkey)
    assert first["task_key"]
    assert await push(installation, body, app.appkey) == first
    installation.clock.move(120)
    (sent,) = await installation.until_sent(1)
    assert (sent.msgid, sent.task_key) == (first["id"], first["task_key"])
    assert await push(installation, body, app.appkey) == first
    listed = {"appkey": {"android": app.appkey}, "page_num": 1, "page_size": 50}
    answer = await installation.call("POST", "/v2/timedtasklist", listed, app.appkey)
    assert [record["TaskKey"] for record in answer["data"]] == [first["task_key"]]


async def test_equal_requests_in_two_processes_send_once(installation: EdgeInstallation, tmp_path: Any) -> None:
    app = await installation.app()
    async with another_edge(installation, str(tmp_path)) as http:
        clients = [installation.http, http] * 8
        answers = await asyncio.gather(
            *(push(installation, broadcast(app), app.appkey, http=client) for client in clients)
        )
    assert answers == [answers[0]] * 16
    (sent,) = await installation.sent()
    assert sent.msgid == answers[0]["id"]


async def test_of_different_requests_under_one_key_one_wins(installation: EdgeInstallation) -> None:
    app = await installation.app()
    bodies = [broadcast(app, extra=str(number)) for number in range(6)]
    answers = await asyncio.gather(*(push(installation, body, app.appkey) for body in bodies))
    (won,) = [answer for answer in answers if answer["result"] == 0]
    assert [answer for answer in answers if answer is not won] == [{"result": 400, "desc": USED}] * 5
    assert [push.msgid for push in await installation.sent()] == [won["id"]]


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_caller_without_an_answer_repeats_the_request(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """The process ends, or loses the log, before or after it appends the claim."""
    app = await installation.app()
    append = installation.log.append

    async def broken(new_records: Sequence[NewRecord]) -> list[int]:
        if any(new_record.topic == TASK_COMMANDS.name for new_record in new_records):
            if is_written:
                await append(new_records)
            raise UnavailableError("the log cannot be written")
        return await append(new_records)

    with monkeypatch.context() as patch:
        patch.setattr(installation.log, "append", broken)
        assert await push(installation, broadcast(app), app.appkey) == {"result": 500, "desc": "internal error"}
    if is_written:
        await installation.until_sent(1)
    answer = await push(installation, broadcast(app), app.appkey)
    assert answer["result"] == 0
    assert [push.msgid for push in await installation.sent()] == [answer["id"]]


KEYS = [
    ("x", True),
    ("x" * 255, True),
    ('"8e03978e-40d5-43e8-bc93-6894a57f9324"', True),
    ("x" * 256, False),
    ("", False),
    ("\u00e9", False),
    ("a\tb", False),
]


async def test_rules_of_the_key(installation: EdgeInstallation) -> None:
    for key, fits in KEYS:
        app = await installation.app()
        content = signed(broadcast(app), installation.secrets[app.appkey])
        headers = [(HEADER.encode(), key.encode("latin-1"))]
        answer = (await installation.http.post("/v2/push", content=content, headers=headers)).json()
        if fits:
            assert answer["result"] == 0
        else:
            desc = f"input error: {HEADER} must have 1 to 255 printable ASCII characters"
            assert answer == {"result": 400, "desc": desc}


async def test_a_request_too_large_for_a_record_is_the_callers_fault(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = broadcast(app)
    body["msgStyle"]["basic"]["content"] = "x" * 800_000
    answer = await push(installation, body, app.appkey)
    assert answer["desc"].startswith("input error: the request is too large")
    body["msgStyle"]["basic"]["content"] = "x" * 600_000
    assert (await push(installation, body, app.appkey))["result"] == 0


async def test_a_legacy_push_is_idempotent_too(installation: EdgeInstallation) -> None:
    app, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    await legacy(installation, installation.android, app, "/push", {})
    await legacy(installation, installation.android, app, "/timed_msg", {"send_time": "2026-09-22 12:00"})
    await legacy(installation, installation.ios, ios, "/push", {})


async def legacy(
    installation: EdgeInstallation, http: httpx.AsyncClient, app: App, path: str, more: dict[str, Any]
) -> None:
    body = {"appkey": app.appkey, "message": "hello", "is_notif": 1, **more}
    answers = []
    for text in ("hello", "hello", "another"):
        content = signed({**body, "message": text}, installation.secrets[app.appkey])
        answers.append(msgspec.json.decode((await http.post(path, content=content, headers={HEADER: path})).content))
    assert answers == [answers[0], answers[0], {"result": 400, "desc": USED}]
    assert answers[0]["result"] == 0
