"""The simulator of Honor grants tokens, refuses what is known to be wrong, and tells what phones show."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from services.honor_simulator.requests import MAX_TIMESTAMP_MS
from services.honor_simulator.server import TOKEN_LIFE_S, HonorApp, HonorSimulator
from services.process.clock import ManualClock
from services.push_simulator.http1 import SimulatorReply

APP = HonorApp("104", "client", "canary-secret")
NOW_MS = 1_800_000_000_000
SHOWN: dict[str, Any] = {"title": "Rain", "body": "from 14:00", "clickAction": {"type": 3}, "notifyId": 5}


def message(notification: dict[str, Any] | None = SHOWN, tokens: Any = ("a",), **android: Any) -> dict[str, Any]:
    shown = {} if notification is None else {"notification": notification}
    return {"token": list(tokens), "android": {**shown, **android}}


class Caller:
    """Asks the simulator as a client does, without connections."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.simulator = HonorSimulator(self.clock)
        self.simulator.register(APP)
        self.access_token = self.token()["access_token"]

    def token(self, path: str = "/auth/token", **changes: str) -> dict[str, Any]:
        form = {"grant_type": "client_credentials", "client_id": "client", "client_secret": "canary-secret", **changes}
        fields = [("content-type", "application/x-www-form-urlencoded")]
        return read(self.post(path, urlencode(form).encode(), fields))

    def send(self, body: Any, path: str = "/api/v1/104/sendMessage", **changes: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.access_token}", "timestamp": str(self.clock.now_ms()), **changes}
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return read(self.post(path, sent, list(headers.items())))

    def post(self, path: str, body: bytes, fields: list[tuple[str, str]]) -> SimulatorReply:
        return self.simulator.reply_to([(":method", "POST"), (":path", path), *fields], body)


def read(reply: SimulatorReply) -> dict[str, Any]:
    return {"status": reply.status, **json.loads(reply.body or b"{}")}


@pytest.fixture
async def caller() -> Caller:
    return Caller()


@pytest.mark.parametrize(
    "body",
    [
        message(),
        message(ttl="1296000s", biTag="b" * 64, targetUserType=1),
        message({**SHOWN, "clickAction": {"type": 1, "intent": "intent://x"}}),
        message({**SHOWN, "clickAction": {"type": 1, "action": "com.example.OPEN"}}),
        message({**SHOWN, "clickAction": {"type": 2, "url": "https://example.org"}}),
        message({**SHOWN, "importance": "LOW", "badge": {"addNum": 99, "badgeClass": "a.B"}, "tag": "t", "group": "g"}),
        message({**SHOWN, "style": 1, "bigTitle": "a", "bigBody": "b", "buttons": [{}, {}, {}], "image": "x"}),
        {"token": ["a"], "data": "x"},
        {"token": ["a"] * 3000, "data": "x" * 9000},
    ],
)
async def test_right_requests(caller: Caller, body: dict[str, Any]) -> None:
    answer = caller.send(body)
    assert (answer["status"], answer["code"]) == (200, 200)
    assert (answer["data"]["sendResult"], answer["data"]["failTokens"], answer["data"]["expireTokens"]) == (
        True, [], [],
    )  # fmt: skip
    assert answer["data"]["requestId"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 80100001),
        (b"[]", 80100001),
        (b"\xff", 80100001),
        (message() | {"unknown": 1}, 80100001),
        (message(unknown=1), 80100001),
        (message({**SHOWN, "sound": "x"}), 80100001),
        (message({**SHOWN, "importance": "HIGH"}), 80100001),
        (message({**SHOWN, "notifyId": "5"}), 80100001),
        (message({**SHOWN, "style": 3}), 80100001),
        (message({**SHOWN, "clickAction": {"type": 4}}), 80100001),
        (message({**SHOWN, "badge": {"addNum": "1"}}), 80100001),
        (message(targetUserType=2), 80100001),
        (message(tokens=[1]), 80100001),
        ({"data": "x"}, 80100001),
        (message(tokens=[]), 80300010),
        (message(tokens=[""]), 80300010),
        (message({**SHOWN, "title": ""}), 80100003),
        (message({**SHOWN, "body": ""}), 80100003),
        (message({"title": "a", "body": "b"}), 80100003),
        (message({**SHOWN, "clickAction": {"type": 1}}), 80100003),
        (message({**SHOWN, "clickAction": {"type": 1, "intent": "i", "action": "a"}}), 80100003),
        (message({**SHOWN, "clickAction": {"type": 2, "url": "http://example.org"}}), 80100003),
        (message({**SHOWN, "clickAction": {"type": 3, "url": "https://example.org"}}), 80100003),
        (message({**SHOWN, "notifyId": 2**31}), 80100003),
        (message({**SHOWN, "buttons": [{}] * 4}), 80100003),
        (message({**SHOWN, "badge": {}}), 80100003),
        (message({**SHOWN, "badge": {"addNum": 0}}), 80100003),
        (message({**SHOWN, "badge": {"setNum": 100}}), 80100003),
        (message(ttl="0s"), 80100003),
        (message(ttl="1296001s"), 80100003),
        (message(ttl="60"), 80100003),
        (message(None), 80100003),
    ],
)
async def test_what_is_refused(caller: Caller, body: Any, code: int) -> None:
    assert caller.send(body)["code"] == code
    assert not caller.simulator.received


async def test_tokens_are_granted_to_who_knows_the_secret(caller: Caller) -> None:
    granted = caller.token()
    assert (granted["status"], granted["expires_in"], granted["token_type"]) == (200, TOKEN_LIFE_S, "Bearer")
    assert caller.token("/auth/realms/developer/protocol/openid-connect/token")["access_token"]
    assert caller.simulator.tokens.granted == 3
    for changes in ({"client_secret": "x"}, {"client_id": "x"}, {"grant_type": "password"}, {"scope": "x"}):
        assert caller.token(**changes)["status"] == 400
    caller.simulator.delete("client")
    assert caller.token()["error"] == "invalid_client"
    assert "canary" not in repr(APP)


async def test_requests_bear_a_token_of_the_app_and_the_time(caller: Caller) -> None:
    assert caller.send(message())["code"] == 200
    assert caller.send(message(), "/api/v1/105/sendMessage")["code"] == 80200001
    assert [caller.send(message(), path)["status"] for path in ("/api/v2/104/sendMessage", "/")] == [404, 404]
    for wrong in ("Bearer x", caller.access_token, f"key={caller.access_token}", ""):
        assert caller.send(message(), authorization=wrong)["code"] == 80200001
    for wrong in ("", "now", str(NOW_MS // 1000), str(NOW_MS - MAX_TIMESTAMP_MS - 1), str(NOW_MS + 600_001)):
        assert caller.send(message(), timestamp=wrong)["code"] == 80200001
    assert caller.send(message(), timestamp=str(NOW_MS - MAX_TIMESTAMP_MS))["code"] == 200
    caller.clock.move(TOKEN_LIFE_S)
    assert caller.send(message())["code"] == 80200003
    caller.access_token = caller.token()["access_token"]
    caller.simulator.tokens.expire()
    assert caller.send(message())["code"] == 80200003


async def test_tokens_are_refused_alone(caller: Caller) -> None:
    data = caller.send(message(tokens=["a", "expired:x", "fail:x", "once-fail:y"]))["data"]
    assert (data["sendResult"], data["failTokens"], data["expireTokens"]) == (
        True, ["fail:x", "once-fail:y"], ["expired:x"],
    )  # fmt: skip
    assert not caller.send(message(tokens=["expired:x"]))["data"]["sendResult"]
    assert caller.send(message(tokens=["once-fail:y"]))["data"]["failTokens"] == []
    assert [received.token for received in caller.simulator.received] == ["a", "once-fail:y"]


async def test_what_is_scripted(caller: Caller) -> None:
    for code in ("80100000", "80200001", "80200003", "80300002", "81000001"):
        assert caller.send(message(tokens=["a", f"{code}:x"]))["code"] == int(code)
    assert caller.send(message(tokens=["code400:x"]))["code"] == 400
    assert caller.send(message(tokens=["503:x"]))["status"] == 503
    assert [caller.send(message(tokens=["once-81000001:x"]))["code"] for _ in range(2)] == [81000001, 200]


async def test_a_phone_shows_a_repeated_message_once(caller: Caller) -> None:
    tagged = {"title": "a", "body": "b", "clickAction": {"type": 3}, "tag": "t"}
    for notification in (SHOWN, {**SHOWN, "title": "New"}, tagged, tagged, None):
        caller.send(message(notification) | {"data": "x"})
    shown = caller.simulator.shown("a")
    assert {key: notification.title for key, notification in shown.items()} == {5: "New", "t": "a"}
    assert caller.simulator.shown("b") == {}
    untagged = {"title": "a", "body": "b", "clickAction": {"type": 3}}
    for _ in range(2):
        caller.send(message(untagged, ["b"]))
    assert len(caller.simulator.shown("b")) == 2
