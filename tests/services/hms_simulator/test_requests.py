"""The simulator of HMS refuses what Huawei's documents say it refuses, and tells what phones show."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from services.domain.channel_credentials.hms import HmsCredentials
from services.hms_simulator.clients import TOKEN_LIFE_S
from services.hms_simulator.requests import MAX_TOKENS, validate
from services.hms_simulator.server import HmsSimulator
from services.process.clock import ManualClock
from services.push_simulator.http1 import SimulatorReply
from services.push_simulator.http1_service import PushRefusedError

CLIENT = HmsCredentials("1045", "secret", "3884")
SHOWN: dict[str, Any] = {"title": "Rain", "body": "from 14:00", "click_action": {"type": 3}, "tag": "t"}


def message(notification: dict[str, Any] | None = SHOWN, tokens: Any = ("a",), **android: Any) -> dict[str, Any]:
    shown = {} if notification is None else {"notification": notification}
    return {"message": {"token": list(tokens), "android": {**shown, **android}}}


def code_of(body: Any, *, may_be_urgent: bool = False) -> str:
    try:
        validate(body if isinstance(body, bytes) else json.dumps(body).encode(), may_be_urgent=may_be_urgent)
    except PushRefusedError as refused:
        return refused.code
    return ""


@pytest.mark.parametrize(
    "body",
    [
        message(),
        message(ttl="1296000s", category="IM", collapse_key=-1, bi_tag="b" * 64, target_user_type=1),
        message({**SHOWN, "click_action": {"type": 1, "intent": "intent://x"}}),
        message({**SHOWN, "click_action": {"type": 1, "action": "com.example.OPEN"}}),
        message({**SHOWN, "click_action": {"type": 2, "url": "https://example.org"}}),
        message({**SHOWN, "importance": "LOW", "badge": {"class": "a.B", "add_num": 1}}),
        message(tokens=[str(number) for number in range(MAX_TOKENS)]),
        {"validate_only": True, "message": {"token": ["a"], "data": "x", "android": {"urgency": "NORMAL"}}},
    ],
)
def test_right_requests(body: dict[str, Any]) -> None:
    assert code_of(body) == ""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "80100001"),
        (b"[]", "80100001"),
        (message() | {"unknown": 1}, "80100001"),
        (message(unknown=1), "80100001"),
        (message({**SHOWN, "sound": "x"}), "80100001"),
        (message({**SHOWN, "importance": "MAX"}), "80100001"),
        (message(tokens=[1]), "80100001"),
        ({"messager": message()["message"]}, "80300010"),
        (message(tokens=[]), "80300010"),
        (message(tokens=["a"] * (MAX_TOKENS + 1)), "80300010"),
        (message({**SHOWN, "body": "x" * 4000}), "80300008"),
        (message({**SHOWN, "title": ""}), "80100003"),
        (message({**SHOWN, "body": ""}), "80100003"),
        (message({"title": "a", "body": "b"}), "80100003"),
        (message({**SHOWN, "click_action": {"type": 1}}), "80100003"),
        (message({**SHOWN, "click_action": {"type": 1, "intent": "i", "action": "a"}}), "80100003"),
        (message({**SHOWN, "click_action": {"type": 2, "url": "http://example.org"}}), "80100003"),
        (message({**SHOWN, "click_action": {"type": 3, "url": "https://example.org"}}), "80100003"),
        (message({**SHOWN, "click_action": {"type": 4}}), "80100001"),
        (message({**SHOWN, "badge": {"set_num": 1}}), "80100001"),
        (message({**SHOWN, "badge": {"class": "a.B", "set_num": 100}}), "80100003"),
        (message({**SHOWN, "badge": {"class": "a.B", "add_num": 0}}), "80100003"),
        (message({**SHOWN, "profile_id": "p" * 65}), "80100003"),
        (message(ttl="0s"), "80100003"),
        (message(ttl="1296001s"), "80100003"),
        (message(ttl="60"), "80100003"),
        (message(collapse_key=101), "80100013"),
        (message(category="NEWS"), "80100003"),
        (message(bi_tag="b" * 65), "80100003"),
        (message(urgency="NORMAL"), "80100003"),
        (message(None), "80100003"),
        (message({**SHOWN, "importance": "HIGH"}), "80300011"),
        ({"message": {"token": ["a"], "data": "x", "android": {"urgency": "HIGH"}}}, "80300011"),
    ],
)
def test_what_is_refused(body: Any, code: str) -> None:
    assert code_of(body) == code


def test_an_app_with_the_right_may_be_urgent() -> None:
    assert code_of(message({**SHOWN, "importance": "HIGH"}), may_be_urgent=True) == ""


class Caller:
    """Asks the simulator as a client does, without connections."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_800_000_000_000)
        self.simulator = HmsSimulator(self.clock)
        self.simulator.clients.register(CLIENT)

    def token(self, **changes: str) -> dict[str, Any]:
        form = {"grant_type": "client_credentials", "client_id": "1045", "client_secret": "secret", **changes}
        fields = [("content-type", "application/x-www-form-urlencoded")]
        return self.read(self.post("/oauth2/v3/token", urlencode(form).encode(), fields))

    def send(self, body: Any, token: str, path: str = "/v2/3884/messages:send") -> dict[str, Any]:
        return self.read(self.post(path, json.dumps(body).encode(), [("authorization", f"Bearer {token}")]))

    def post(self, path: str, body: bytes, fields: list[tuple[str, str]]) -> SimulatorReply:
        return self.simulator.reply_to([(":method", "POST"), (":path", path), *fields], body)

    def read(self, reply: SimulatorReply) -> dict[str, Any]:
        return {"status": reply.status, **json.loads(reply.body)}


@pytest.fixture
async def caller() -> Caller:
    return Caller()


async def test_tokens_are_granted_to_who_knows_the_secret(caller: Caller) -> None:
    granted = caller.token()
    assert (granted["status"], granted["expires_in"], granted["token_type"]) == (200, TOKEN_LIFE_S, "Bearer")
    for changes in ({"client_secret": "x"}, {"client_id": "x"}, {"grant_type": "password"}, {"scope": "x"}):
        assert caller.token(**changes)["status"] == 400
    caller.simulator.clients.delete("1045")
    assert caller.token()["error"] == "invalid_client"


async def test_tokens_expire_and_belong_to_one_app(caller: Caller) -> None:
    token = caller.token()["access_token"]
    assert caller.send(message(), token)["code"] == "80000000"
    assert caller.send(message(), token, "/v1/1045/messages:send")["code"] == "80000000"
    assert caller.send(message(), token, "/v2/1/messages:send")["code"] == "80200001"
    assert caller.send(message(), "x")["code"] == "80200001"
    caller.clock.move(TOKEN_LIFE_S)
    assert caller.send(message(), token)["code"] == "80200003"


async def test_invalid_tokens_alone_are_refused(caller: Caller) -> None:
    token = caller.token()["access_token"]
    answer = caller.send(message(tokens=["a", "80100000:x", "not a token"]), token)
    told = {"success": 1, "failure": 2, "illegal_tokens": ["80100000:x", "not a token"]}
    assert (answer["status"], answer["code"], json.loads(answer["msg"])) == (200, "80100000", told)
    assert caller.send(message(tokens=["80300007:x", "%"]), token)["code"] == "80300007"
    assert [received.token for received in caller.simulator.received] == ["a"]
    assert list(caller.simulator.shown("a")) == ["t"]


async def test_what_is_scripted(caller: Caller) -> None:
    token = caller.token()["access_token"]
    caller.simulator.retry_after = "9"
    fields = [("authorization", f"Bearer {token}")]
    body = json.dumps(message(tokens=["503:x"])).encode()
    assert caller.post("/v2/3884/messages:send", body, fields) == SimulatorReply(503, [("retry-after", "9")])
    assert [caller.send(message(tokens=["once-81000001:x"]), token)["code"] for _ in range(2)] == [
        "81000001", "80000000",
    ]  # fmt: skip
    body = json.dumps(message(tokens=["a", "cut:x"])).encode()
    assert caller.post("/v2/3884/messages:send", body, fields).fault == "cut"
    assert [received.token for received in caller.simulator.received] == ["once-81000001:x"]
    body = json.dumps(message(tokens=["a", "lost:x"])).encode()
    assert caller.post("/v2/3884/messages:send", body, fields).fault == "lost"
    assert len(caller.simulator.received) == 3
    assert caller.simulator.refused == {"503": 1, "81000001": 1}
    assert caller.simulator.reply_to([(":method", "GET"), (":path", "/")], b"").status == 404
