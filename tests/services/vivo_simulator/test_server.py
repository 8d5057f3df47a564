"""The simulator of vivo grants tokens, refuses what vivo's documents say it refuses, and tells what phones show."""

import hashlib
import json
from typing import Any

import pytest

from services.process.clock import ManualClock
from services.push_simulator.http1 import SimulatorReply
from services.vivo_simulator.requests import MAX_TIMESTAMP_MS
from services.vivo_simulator.server import TOKEN_LIFE_S, VivoApp, VivoSimulator

APP = VivoApp("10004", "key", "canary-secret")
NOW_MS = 1_800_000_000_000
SHOWN: dict[str, Any] = {
    "appId": "10004", "regId": "a", "notifyType": 4, "title": "Rain", "content": "from 14:00", "skipType": 1,
    "requestId": "7",
}  # fmt: skip


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in SHOWN.items() if key != name}


class Caller:
    """Asks the simulator as a sender does, without connections."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.simulator = VivoSimulator(self.clock)
        self.simulator.register(APP)
        self.auth_token = self.auth()["authToken"]

    def auth(self, **changes: Any) -> dict[str, Any]:
        timestamp = changes.get("timestamp", self.clock.now_ms())
        app_id, app_key = changes.get("appId", "10004"), changes.get("appKey", "key")
        sign = hashlib.md5(f"{app_id}{app_key}{timestamp}canary-secret".encode(), usedforsecurity=False).hexdigest()
        body = {"appId": app_id, "appKey": app_key, "timestamp": timestamp, "sign": sign, **changes}
        return self.read(self.post("/message/auth", {key: value for key, value in body.items() if value is not None}))

    def send(self, message: Any, **headers: str) -> dict[str, Any]:
        return self.read(self.post("/message/send", message, **headers))

    def post(self, path: str, body: Any, **headers: str) -> SimulatorReply:
        named = {"authtoken": self.auth_token, **headers} if path != "/message/auth" else headers
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.simulator.reply_to([(":method", "POST"), (":path", path), *named.items()], sent)

    def read(self, reply: SimulatorReply) -> dict[str, Any]:
        return {"status": reply.status, **json.loads(reply.body or b"{}")}


@pytest.fixture
async def caller() -> Caller:
    return Caller()


@pytest.mark.parametrize(
    "message",
    [
        SHOWN,
        {**SHOWN, "appId": 10004, "notifyType": 1},
        {**SHOWN, "title": "雨" * 40, "content": "雨" * 100, "requestId": "r" * 64, "profileId": "p" * 64},
        {**SHOWN, "timeToLive": 60, "networkType": 1, "pushMode": 1, "sendOnline": True, "foregroundShow": False},
        {**SHOWN, "timeToLive": 86_400, "networkType": -1, "pushMode": 0, "notifyId": 2**31 - 1},
        {**SHOWN, "skipType": 2, "skipContent": "https://example.org/" + "x" * 2028},
        {**SHOWN, "skipType": 3, "skipContent": "x" * 1024},
        {**SHOWN, "skipType": 4, "skipContent": "intent:#Intent;end"},
        {**SHOWN, "classification": 1, "category": "IM"},
        {**SHOWN, "classification": 0, "category": "MARKETING"},
        {**SHOWN, "classification": 1},
        {**SHOWN, "clientCustomMap": {f"{number}": "x" * 101 for number in range(10)}},
        {**SHOWN, "extra": {"callback": "https://example.org", "callback.param": "p" * 192}},
        {**SHOWN, "extra": {"callback.id": "1", "callback.param": "p"}},
    ],
)
async def test_right_requests(caller: Caller, message: dict[str, Any]) -> None:
    answer = caller.send(message)
    assert (answer["status"], answer["result"]) == (200, 0)
    assert answer["taskId"]
    assert "invalidUser" not in answer


@pytest.mark.parametrize(
    ("message", "result"),
    [
        *((without(name), 10050) for name in SHOWN),
        ({**SHOWN, "regId": ""}, 10050),
        ({**SHOWN, "title": ""}, 10050),
        (b"{", 10054),
        (b"[]", 10054),
        (b"\xff", 10054),
        ({**SHOWN, "sound": 1}, 10054),
        ({**SHOWN, "title": 1}, 10054),
        ({**SHOWN, "notifyType": 5}, 10054),
        ({**SHOWN, "notifyType": "1"}, 10054),
        ({**SHOWN, "skipType": 5}, 10054),
        ({**SHOWN, "skipType": 2}, 10054),
        ({**SHOWN, "skipType": 4}, 10054),
        ({**SHOWN, "skipContent": "https://example.org"}, 10054),
        ({**SHOWN, "timeToLive": 59}, 10054),
        ({**SHOWN, "timeToLive": 86_401}, 10054),
        ({**SHOWN, "networkType": 0}, 10054),
        ({**SHOWN, "pushMode": 2}, 10054),
        ({**SHOWN, "notifyId": 0}, 10054),
        ({**SHOWN, "notifyId": 2**31}, 10054),
        ({**SHOWN, "sendOnline": 1}, 10054),
        ({**SHOWN, "foregroundShow": "false"}, 10054),
        ({**SHOWN, "clientCustomMap": {"a": 1}}, 10054),
        ({**SHOWN, "clientCustomMap": {f"{number}": "x" for number in range(11)}}, 10054),
        ({**SHOWN, "extra": {"unknown": "x"}}, 10054),
        ({**SHOWN, "title": "x" * 41}, 10056),
        ({**SHOWN, "content": "x" * 101}, 10056),
        ({**SHOWN, "requestId": "x" * 65}, 10056),
        ({**SHOWN, "profileId": "x" * 65}, 10056),
        ({**SHOWN, "skipType": 2, "skipContent": "x" * 2049}, 10056),
        ({**SHOWN, "skipType": 3, "skipContent": "x" * 1025}, 10056),
        ({**SHOWN, "clientCustomMap": {"a": "x" * 1024}}, 10056),
        ({**SHOWN, "extra": {"callback": "x" * 129}}, 10056),
        ({**SHOWN, "extra": {"callback": "x", "callback.param": "p" * 193}}, 10056),
        ({**SHOWN, "category": "WEATHER"}, 10096),
        ({**SHOWN, "category": "IM"}, 10097),
        ({**SHOWN, "classification": 1, "category": "MARKETING"}, 10097),
        ({**SHOWN, "classification": 2}, 11000),
        ({**SHOWN, "appId": "10005"}, 10094),
    ],
)
async def test_what_is_refused(caller: Caller, message: Any, result: int) -> None:
    answer = caller.send(message)
    assert (answer["status"], answer["result"]) == (200, result)
    assert answer["desc"]
    assert not caller.simulator.received


async def test_tokens_are_granted_to_who_signs_with_the_secret(caller: Caller) -> None:
    assert caller.auth()["result"] == 0
    assert caller.auth(appId=10004)["result"] == 0
    assert caller.simulator.tokens.granted == 3
    right = hashlib.md5(f"10004key{NOW_MS}canary-secret".encode(), usedforsecurity=False).hexdigest()
    for wrong in ({"sign": "0" * 32}, {"sign": right.upper()}, {"appKey": "other"}, {"appId": "10005"}):
        assert caller.auth(**wrong)["result"] == 10000
    assert [caller.auth(timestamp=NOW_MS + off)["result"] for off in (-MAX_TIMESTAMP_MS, -600_001, 600_001)] == [
        0, 10000, 10000,
    ]  # fmt: skip
    assert [caller.auth(**{name: None})["result"] for name in ("appId", "appKey", "sign", "timestamp")] == [10050] * 4
    assert [caller.auth(**wrong)["result"] for wrong in ({"timestamp": "now"}, {"unknown": 1})] == [10054] * 2
    caller.simulator.delete("10004")
    assert caller.auth()["result"] == 10000
    assert "canary" not in repr(APP)


async def test_auth_tokens_live_for_a_day(caller: Caller) -> None:
    caller.clock.move(TOKEN_LIFE_S - 1)
    assert caller.send(SHOWN)["result"] == 0
    assert [caller.send(SHOWN, authtoken=token)["result"] for token in ("x", "")] == [10000, 10000]
    caller.clock.move(1)
    assert caller.send(SHOWN)["result"] == 10000
    caller.auth_token = caller.auth()["authToken"]
    assert caller.send(SHOWN)["result"] == 0
    caller.simulator.tokens.expire()
    assert caller.send(SHOWN)["result"] == 10000
    assert caller.post("/message/pushToList", SHOWN).status == 404


@pytest.mark.parametrize(
    "code",
    [
        10000, 10094, *range(10050, 10074), *range(10150, 10155), 10301, 10305, 10306, 10352, 10353, 10471, 10473,
        10096, 10097, 11000, 10302, 10252, 10254, 10999,
    ],
)  # fmt: skip
async def test_each_documented_result_is_scripted(caller: Caller, code: int) -> None:
    assert caller.send({**SHOWN, "regId": f"{code}:x"})["result"] == code
    once = {**SHOWN, "regId": f"once-{code}:x"}
    assert [caller.send(once)["result"] for _ in range(2)] == [code, 0]
    assert caller.simulator.refused == {str(code): 2}


@pytest.mark.parametrize("status", [1, 2, 3, 4])
async def test_an_invalid_user_is_told_by_its_status(caller: Caller, status: int) -> None:
    answer = caller.send({**SHOWN, "regId": f"invalid{status}:x"})
    assert (answer["result"], answer["invalidUser"]) == (0, {"userid": f"invalid{status}:x", "status": status})
    assert not caller.simulator.received
    once = {**SHOWN, "regId": f"once-invalid{status}:x"}
    assert ["invalidUser" in caller.send(once) for _ in range(2)] == [True, False]


async def test_statuses_and_faults_are_scripted(caller: Caller) -> None:
    assert caller.send({**SHOWN, "regId": "503:x"})["status"] == 503
    assert caller.post("/message/send", {**SHOWN, "regId": "lost:x"}).fault == "lost"
    assert [received.token for received in caller.simulator.received] == ["lost:x"]


async def test_a_phone_shows_a_repeated_message_once(caller: Caller) -> None:
    for changes in ({"notifyId": 5}, {"notifyId": 5, "title": "New"}, {"notifyId": 6}):
        caller.send({**SHOWN, **changes})
    shown = caller.simulator.shown("a")
    assert {key: message.title for key, message in shown.items()} == {5: "New", 6: "Rain"}
    for _ in range(2):
        caller.send({**SHOWN, "regId": "b"})
    assert len(caller.simulator.shown("b")) == 2
