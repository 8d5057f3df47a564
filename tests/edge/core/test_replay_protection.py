"""Replay-safe signatures: a captured request is carried out once, and only as it was sent."""

import asyncio
import secrets as random_secrets
from typing import Any

import httpx
import pytest

from edge.core.replay_protection import (
    MOST_NONCES,
    NONCE_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    WINDOW_S,
    ReplayProtection,
    ReplaySafeSignature,
    body_hash,
    sign_request,
)
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import RotateSecretRequest, UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.topics import REQUEST_NONCES, TOPICS
from services.errors import InputError, TryLaterError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from testkit.edge.role import NOW_MS, EdgeInstallation
from testkit.edge.v2_bodies import broadcast
from testkit.repository import ROOT
from testkit.signing import replay_safe, signed

NOW_S = NOW_MS // 1000
IOS_TOKEN = "ab" * 32


def nonce() -> str:
    return random_secrets.token_urlsafe(16)


async def send(
    http: httpx.AsyncClient, body: bytes, headers: dict[str, str], path: str = "/v2/push", method: str = "POST"
) -> dict[str, Any]:
    answer: dict[str, Any] = (await http.request(method, path, content=body, headers=headers)).json()
    return answer


async def require(installation: EdgeInstallation, app: App) -> None:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, replay_safe_required=True))
    await installation.context.apps.refresh()


async def test_a_captured_request_is_carried_out_once(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "t1")
    secret = installation.secrets[app.appkey]
    body = signed(broadcast(app), secret)
    now_s = installation.clock.now_ms() // 1000
    headers = replay_safe("POST", "/v2/push", body, now_s, nonce(), secret)
    assert (await send(installation.http, body, headers))["result"] == 0
    again = await send(installation.http, body, headers)
    assert (again["result"], again["desc"]) == (
        400,
        "input error: Carillon-Nonce was used already: each request needs another one",
    )
    for answer in await asyncio.gather(*(send(installation.http, body, headers) for _ in range(20))):
        assert answer["result"] == 400
    assert len(await installation.sent()) == 1
    fresh = replay_safe("POST", "/v2/push", body, now_s, nonce(), secret)
    assert (await send(installation.http, body, fresh))["result"] == 0


async def test_requests_at_once_with_one_nonce_are_carried_out_once(installation: EdgeInstallation) -> None:
    app = await installation.app()
    secret = installation.secrets[app.appkey]
    body = signed(broadcast(app), secret)
    headers = replay_safe("POST", "/v2/push", body, NOW_S, nonce(), secret)
    answers = await asyncio.gather(*(send(installation.http, body, headers) for _ in range(20)))
    assert sorted(answer["result"] for answer in answers) == [0] + [400] * 19
    assert len(await installation.sent()) == 1


async def test_a_captured_request_is_worth_nothing_elsewhere(installation: EdgeInstallation) -> None:
    """Neither at another path, nor with another method, nor with another body, time or nonce."""
    app, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    secret, ios_secret = installation.secrets[app.appkey], installation.secrets[ios.appkey]
    for each in (app, ios):
        await require(installation, each)
    later = {"appkey": app.appkey, "message": "m", "is_notif": 0, "send_time": "2026-09-22 12:00"}
    body = signed(later, secret)
    timed = replay_safe("POST", "/timed_msg", body, NOW_S, nonce(), secret)
    assert (await send(installation.android, body, timed, "/push"))["result"] == 401
    question = signed({"appkey": {"android": app.appkey}, "task_key": "none"}, secret)
    detail = replay_safe("POST", "/v2/timedtaskdetail", question, NOW_S, nonce(), secret)
    assert (await send(installation.http, question, detail, "/v2/timed", "DELETE"))["result"] == 401
    registration = signed({"appkey": ios.appkey, "token": IOS_TOKEN}, ios_secret)
    register = replay_safe("POST", "/register", registration, NOW_S, nonce(), ios_secret)
    assert (await send(installation.ios, registration, register, "/register", "DELETE"))["result"] == 401
    other = signed({**later, "message": "n"}, secret)
    assert (await send(installation.android, other, timed, "/timed_msg"))["result"] == 401
    for name, value in ((TIME_HEADER, str(NOW_S + 1)), (NONCE_HEADER, nonce()), (SIGNATURE_HEADER, "0" * 64)):
        refused = await send(installation.android, body, {**timed, name: value}, "/timed_msg")
        assert (refused["result"], refused["desc"]) == (401, "sign not correct")
    assert await installation.sent() == []
    assert await installation.tasks() == []
    assert (await send(installation.android, body, timed, "/timed_msg"))["result"] == 0
    assert (await send(installation.ios, registration, register, "/register"))["result"] == 0


async def test_the_time_must_be_near(installation: EdgeInstallation) -> None:
    app = await installation.app()
    secret = installation.secrets[app.appkey]
    body = signed(broadcast(app), secret)
    now_s = installation.clock.now_ms() // 1000
    for time_s, result in (
        (now_s - WINDOW_S - 1, 400),
        (now_s + WINDOW_S + 1, 400),
        (now_s - WINDOW_S, 0),
        (now_s + WINDOW_S, 0),
    ):
        answer = await send(installation.http, body, replay_safe("POST", "/v2/push", body, time_s, nonce(), secret))
        assert answer["result"] == result, answer
    headers = replay_safe("POST", "/v2/push", body, now_s, nonce(), secret)
    assert (await send(installation.http, body, headers))["result"] == 0
    for moved_s in (WINDOW_S - 1, 1, 1, 20, 86_400):
        installation.clock.move(moved_s)
        assert (await send(installation.http, body, headers))["result"] == 400
    assert len(await installation.sent()) == 3


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({TIME_HEADER: "1"}, f"{NONCE_HEADER} is missing beside the other headers of the signature"),
        ({TIME_HEADER: "x", NONCE_HEADER: "n" * 16, SIGNATURE_HEADER: "0" * 64}, f"{TIME_HEADER} must match"),
        ({TIME_HEADER: "1", NONCE_HEADER: "n" * 15, SIGNATURE_HEADER: "0" * 64}, f"{NONCE_HEADER} must match"),
        ({TIME_HEADER: "1", NONCE_HEADER: "n" * 65, SIGNATURE_HEADER: "0" * 64}, f"{NONCE_HEADER} must match"),
        ({TIME_HEADER: "1", NONCE_HEADER: "n" * 16, SIGNATURE_HEADER: "F" * 64}, f"{SIGNATURE_HEADER} must match"),
    ],
)
async def test_malformed_headers_are_named(
    installation: EdgeInstallation, headers: dict[str, str], problem: str
) -> None:
    app = await installation.app()
    answer = await send(installation.http, signed(broadcast(app), installation.secrets[app.appkey]), headers)
    assert answer["result"] == 400
    assert answer["desc"].startswith(f"input error: {problem}")
    assert await installation.sent() == []


async def test_an_app_may_demand_the_headers(installation: EdgeInstallation) -> None:
    app, other = await installation.app(), await installation.app(PLATFORM_IOS)
    await require(installation, other)
    both = broadcast(app)
    both["sendTo"] = {"appkey": {"android": app.appkey, "ios": other.appkey}, "userScope": 0}
    used = [installation.secrets[app.appkey], installation.secrets[other.appkey]]
    body = signed(both, *used)
    refused = await installation.http.post("/v2/push", content=body)
    assert (refused.status_code, refused.json()["result"]) == (403, 403)
    assert SIGNATURE_HEADER in refused.json()["desc"]
    assert await installation.sent() == []
    swapped = replay_safe("POST", "/v2/push", body, NOW_S, nonce(), *reversed(used))
    assert (await send(installation.http, body, swapped))["result"] == 401
    headers = replay_safe("POST", "/v2/push", body, NOW_S, nonce(), *used)
    assert (await send(installation.http, body, headers))["result"] == 0
    alone = signed(broadcast(app), used[0])
    assert (await send(installation.http, alone, {}))["result"] == 0


async def test_an_old_secret_signs_both(installation: EdgeInstallation) -> None:
    app = await installation.app()
    old = installation.secrets[app.appkey]
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.RotateSecret(RotateSecretRequest(appkey=app.appkey, keep_old_s=3600))
    await installation.context.apps.refresh()
    body = signed(broadcast(app), old)
    assert (await send(installation.http, body, replay_safe("POST", "/v2/push", body, NOW_S, nonce(), old)))[
        "result"
    ] == 0


async def test_a_request_with_a_wrong_sign_uses_no_nonce(installation: EdgeInstallation) -> None:
    app = await installation.app()
    secret = installation.secrets[app.appkey]
    body, wrong = signed(broadcast(app), secret), signed(broadcast(app), "wrong")
    headers = replay_safe("POST", "/v2/push", body, NOW_S, nonce(), secret)
    assert (await send(installation.http, wrong, headers))["result"] == 401
    assert (await send(installation.http, body, headers))["result"] == 0


class Edges:
    """Processes of the edge on one log and one clock."""

    def __init__(self, log: SqliteLog) -> None:
        self.log = log
        self.clock = ManualClock(NOW_MS)

    def start(self) -> ReplayProtection:
        return ReplayProtection("edge", self.log, self.clock)

    def now_s(self) -> int:
        return self.clock.now_ms() // 1000


@pytest.fixture
async def edges(tmp_path: Any) -> Any:
    log = SqliteLog(tmp_path / "events.db", TOPICS)
    yield Edges(log)
    await log.close()


def request_at(time_s: int, text: str) -> ReplaySafeSignature:
    return ReplaySafeSignature(time_s, text, "0" * 64)


async def test_another_edge_and_the_next_start_know_what_was_used(edges: Edges) -> None:
    first, second = edges.start(), edges.start()
    await first.take(request_at(edges.now_s(), "n" * 16), ["1"])
    for edge in (second, edges.start(), first):
        with pytest.raises(InputError):
            await edge.take(request_at(edges.now_s(), "n" * 16), ["1"])
    await second.take(request_at(edges.now_s(), "n" * 16), ["2"])


async def test_edges_at_once_agree_on_one_request(edges: Edges) -> None:
    processes = [edges.start() for _ in range(5)]
    for number in range(20):
        taken = [process.take(request_at(edges.now_s(), f"{number:016}"), ["1"]) for process in processes]
        found = await asyncio.gather(*taken, return_exceptions=True)
        assert sorted(str(type(error).__name__) for error in found) == ["InputError"] * 4 + ["NoneType"]


async def test_what_is_forgotten_can_not_be_repeated_any_more(edges: Edges) -> None:
    edge = edges.start()
    for step in range(50):
        future = edges.now_s() + WINDOW_S
        await edge.take(request_at(future, f"{step:016}"), ["1"])
        edges.clock.move(60)
        with pytest.raises(InputError):
            await edge.take(request_at(future, f"{step:016}"), ["1"])
    assert len(edge._used._nonces) < 20


async def test_requests_from_before_the_first_known_record_are_put_off(edges: Edges) -> None:
    """A start reads a bounded number of records; what they do not tell is not taken for unused."""
    await edges.start().take(request_at(edges.now_s(), "n" * 16), ["1"])
    late = edges.start()
    late._claims._window = 0
    edges.clock.move(20)
    with pytest.raises(TryLaterError):
        await late.take(request_at(edges.now_s(), "m" * 16), ["1"])
    edges.clock.move(WINDOW_S + 20)
    await late.take(request_at(edges.now_s(), "o" * 16), ["1"])


async def test_a_damaged_record_is_left_out(edges: Edges) -> None:
    edge = edges.start()
    await edge.take(request_at(edges.now_s(), "n" * 16), ["1"])
    await edges.log.append([NewRecord(REQUEST_NONCES.name, 0, b"x", b"\xff\xff")])
    await edge.take(request_at(edges.now_s(), "m" * 16), ["1"])
    with pytest.raises(InputError):
        await edges.start().take(request_at(edges.now_s(), "n" * 16), ["1"])


async def test_many_at_once_share_records(edges: Edges) -> None:
    edge = edges.start()
    await asyncio.gather(*(edge.take(request_at(edges.now_s(), f"{number:016}"), ["1"]) for number in range(500)))
    partition = Partition(REQUEST_NONCES.name, 0)
    assert (await edges.log.ends([partition]))[partition] <= 3


async def taken(edges: Edges, edge: ReplayProtection, appkey: str) -> int:
    """Send requests of an app until one is put off, and return how many were not."""
    for number in range(MOST_NONCES):
        try:
            await edge.take(request_at(edges.now_s(), nonce()), [appkey])
        except TryLaterError:
            return number
    return MOST_NONCES


async def test_an_app_that_uses_many_nonces_leaves_places_for_others(
    edges: Edges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.core.replay_protection.MOST_NONCES", 100)
    busy, other = edges.start(), edges.start()
    assert await taken(edges, busy, "1") == 80
    assert await taken(edges, other, "1") == 1  # which shows it those that `busy` has taken
    assert await taken(edges, other, "2") == 16
    assert await taken(edges, other, "3") == 3
    edges.clock.move(2 * WINDOW_S)
    assert await taken(edges, busy, "1") == 80
    assert await taken(edges, busy, "2") == 16


def test_the_signature_is_what_the_documents_say() -> None:
    """Computed by `openssl dgst -sha256 -hmac` over the five lines of docs/app-servers.md."""
    body = b'{"a":1}'
    made = sign_request("POST", "/v2/push", 1_790_000_000, "0123456789abcdef", body_hash(body), ["secret"])
    assert made == "4a069abaada82f85314652ef3e2953072cc6a54ea381e965e2c1f5483a320d38"
    assert made in (ROOT / "docs" / "app-servers.md").read_text()
