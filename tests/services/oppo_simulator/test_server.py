"""The simulator of OPPO grants tokens, refuses what OPPO's documents say it refuses, and tells what phones show."""

import hashlib
import json
from typing import Any
from urllib.parse import urlencode

import pytest

from services.oppo_simulator.requests import MAX_TIMESTAMP_MS, MAX_TTL_S
from services.oppo_simulator.server import TOKEN_LIFE_S, OppoApp, OppoSimulator
from services.process.clock import ManualClock
from services.push_simulator.http1 import SimulatorReply

APP = OppoApp("key", "canary-secret")
FORM = "application/x-www-form-urlencoded"
NOW_MS = 1_800_000_000_000
SHOWN: dict[str, Any] = {"title": "Rain", "content": "from 14:00"}


def message(notification: Any = SHOWN, **changes: Any) -> dict[str, Any]:
    return {"target_type": 2, "target_value": "CN_a", "notification": notification, **changes}


class Caller:
    """Asks the simulator as a sender does, without connections."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.simulator = OppoSimulator(self.clock)
        self.simulator.register(APP)
        self.auth_token = self.auth()["data"]["auth_token"]

    def auth(self, **changes: str | None) -> dict[str, Any]:
        app_key, timestamp = changes.get("app_key") or "key", changes.get("timestamp") or str(self.clock.now_ms())
        sign = hashlib.sha256(f"{app_key}{timestamp}canary-secret".encode()).hexdigest()
        form = {"app_key": app_key, "timestamp": timestamp, "sign": sign, **changes}
        return self.read(self.post("/server/v1/auth", {name: value for name, value in form.items() if value}))

    def send(self, message: Any, **changes: str) -> dict[str, Any]:
        text = message if isinstance(message, str) else json.dumps(message)
        form = {"auth_token": self.auth_token, "message": text, **changes}
        return self.read(self.post("/server/v1/message/notification/unicast", form))

    def post(self, path: str, form: dict[str, str], content_type: str = FORM) -> SimulatorReply:
        fields = [(":method", "POST"), (":path", path), ("content-type", content_type)]
        return self.simulator.reply_to(fields, urlencode(form).encode())

    def read(self, reply: SimulatorReply) -> dict[str, Any]:
        return {"status": reply.status, **json.loads(reply.body or b"{}")}


@pytest.fixture
async def caller() -> Caller:
    return Caller()


@pytest.mark.parametrize(
    "sent",
    [
        message(),
        message(verify_registration_id=True),
        message({**SHOWN, "title": "雨" * 50, "content": "雨" * 50, "sub_title": "雨" * 10}),
        message({**SHOWN, "style": 2, "content": "雨" * 128}),
        message({**SHOWN, "off_line": True, "off_line_ttl": MAX_TTL_S, "network_type": 1, "show_ttl": 60}),
        message({**SHOWN, "click_action_type": 1, "click_action_activity": "com.example.OPEN"}),
        message({**SHOWN, "click_action_type": 2, "click_action_url": "https://example.org"}),
        message({**SHOWN, "click_action_type": 4, "click_action_activity": "com.example.Main"}),
        message({**SHOWN, "click_action_type": 5, "click_action_url": "intent:#Intent;end"}),
        message({**SHOWN, "click_action_type": 5, "click_action_activity": "intent:#Intent;end"}),
        message({**SHOWN, "action_parameters": '{"a":"b"}', "channel_id": "news", "notify_id": 2**31 - 1}),
        message({**SHOWN, "action_parameters": {"a": "b"}, "app_message_id": "7"}),
        message({**SHOWN, "category": "ORDER", "notify_level": 16}),
        message({**SHOWN, "private_msg_template_id": "1", "private_title_parameters": {"a": "b"}}),
        message({**SHOWN, "call_back_url": "https://example.org", "call_back_parameter": "p" * 100}),
    ],
)
async def test_right_requests(caller: Caller, sent: dict[str, Any]) -> None:
    answer = caller.send(sent)
    assert (answer["status"], answer["code"]) == (200, 0)
    assert answer["data"]["messageId"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("", 40),
        (message() | {"target_value": ""}, 40),
        ({"target_value": "CN_a", "notification": SHOWN}, 40),
        ({"target_type": 2, "target_value": "CN_a"}, 40),
        (message({"content": "x"}), 40),
        (message({"title": "x"}), 40),
        ("{", 41),
        ("[]", 41),
        (message(unknown=1), 41),
        (message(target_type=1), 41),
        (message(target_type="2"), 41),
        (message(target_value="a;b"), 41),
        (message(verify_registration_id="true"), 41),
        (message({**SHOWN, "sound": "x"}), 41),
        (message({**SHOWN, "title": 1}), 41),
        (message({**SHOWN, "title": "x" * 51}), 41),
        (message({**SHOWN, "content": "x" * 51}), 41),
        (message({**SHOWN, "content": "x" * 129, "style": 2}), 41),
        (message({**SHOWN, "style": 3}), 41),
        (message({**SHOWN, "sub_title": "x" * 11}), 41),
        (message({**SHOWN, "click_action_type": 3}), 41),
        (message({**SHOWN, "click_action_type": 1}), 41),
        (message({**SHOWN, "click_action_type": 2}), 41),
        (message({**SHOWN, "click_action_type": 5}), 41),
        (message({**SHOWN, "click_action_url": "https://example.org"}), 41),
        (message({**SHOWN, "click_action_type": 2, "click_action_url": "x" * 2001}), 41),
        (message({**SHOWN, "click_action_type": 4, "click_action_activity": "x" * 501}), 41),
        (message({**SHOWN, "action_parameters": "x"}), 41),
        (message({**SHOWN, "action_parameters": "[]"}), 41),
        (message({**SHOWN, "action_parameters": {"a": "x" * 3993}}), 41),
        (message({**SHOWN, "off_line_ttl": 0}), 41),
        (message({**SHOWN, "off_line_ttl": MAX_TTL_S + 1}), 41),
        (message({**SHOWN, "off_line_ttl": 60, "off_line": False}), 41),
        (message({**SHOWN, "network_type": 2}), 41),
        (message({**SHOWN, "notify_id": -1}), 41),
        (message({**SHOWN, "notify_id": 2**31}), 41),
        (message({**SHOWN, "notify_id": "1"}), 41),
        (message({**SHOWN, "show_ttl": 0}), 41),
        (message({**SHOWN, "app_message_id": ""}), 41),
        (message({**SHOWN, "app_message_id": 7}), 41),
        (message({**SHOWN, "private_title_parameters": {"a": "b"}}), 41),
        (message({**SHOWN, "call_back_url": "x" * 201}), 41),
        (message({**SHOWN, "call_back_parameter": "x" * 101}), 41),
        (message({**SHOWN, "category": "ORDER", "notify_level": 3}), 41),
        (message({**SHOWN, "category": "WEATHER"}), 67),
        (message({**SHOWN, "notify_level": 2}), 67),
    ],
)
async def test_what_is_refused(caller: Caller, sent: Any, code: int) -> None:
    answer = caller.send(sent)
    assert (answer["status"], answer["code"]) == (200, code)
    assert answer["message"]
    assert not caller.simulator.received


async def test_the_form_of_a_unicast_has_two_fields(caller: Caller) -> None:
    assert caller.send(message(), app_key="key")["code"] == 41
    path = "/server/v1/message/notification/unicast"
    form = {"auth_token": caller.auth_token, "message": json.dumps(message())}
    assert caller.read(caller.post(path, form, "application/json"))["code"] == 41
    assert caller.post("/server/v1/message/notification/unicast_batch", form).status == 404


async def test_tokens_are_granted_to_who_signs_with_the_secret(caller: Caller) -> None:
    assert caller.auth()["data"]["create_time"] == NOW_MS
    assert caller.simulator.tokens.granted == 2
    assert caller.auth(sign="0" * 64)["code"] == 16
    assert caller.auth(app_key="other")["code"] == 14
    late, early = str(NOW_MS - MAX_TIMESTAMP_MS - 1), str(NOW_MS + MAX_TIMESTAMP_MS + 1)
    assert [caller.auth(timestamp=text)["code"] for text in (late, early, "1800000000", "now")] == [19] * 4
    assert caller.auth(timestamp=str(NOW_MS - MAX_TIMESTAMP_MS))["code"] == 0
    form = {"app_key": "key", "timestamp": str(NOW_MS), "sign": "0" * 64}
    codes = [
        caller.read(caller.post("/server/v1/auth", {n: v for n, v in form.items() if n != name}))["code"]
        for name in form
    ]
    assert codes == [15, 18, 17]
    assert caller.auth(master_secret="canary-secret")["code"] == 41
    caller.simulator.delete("key")
    assert caller.auth()["code"] == 14
    assert "canary" not in repr(APP)


async def test_auth_tokens_live_for_a_day(caller: Caller) -> None:
    caller.clock.move(TOKEN_LIFE_S - 1)
    assert caller.send(message())["code"] == 0
    assert [caller.send(message(), auth_token=token)["code"] for token in ("x", "")] == [11, 11]
    caller.clock.move(1)
    assert caller.send(message())["code"] == 11
    caller.auth_token = caller.auth()["data"]["auth_token"]
    assert caller.send(message())["code"] == 0
    caller.simulator.tokens.expire()
    assert caller.send(message())["code"] == 11


@pytest.mark.parametrize(
    "code",
    [
        -2, 13, 55, -1, 11, 29, 14, 15, 16, 17, 18, 19, 12, 20, 21, 22, 23, 24, 25, 40, 41, 26, 27, 28, 30, 59, 31, 32,
        33, 34, 51, 67, 10000, 10001, 20000,
    ],
)  # fmt: skip
async def test_each_documented_code_is_scripted(caller: Caller, code: int) -> None:
    answer = caller.send(message(target_value=f"{code}:x"))
    assert answer["code"] == code
    assert ("registration id" in answer["message"]) == (code == 10000)
    once = message(target_value=f"once-{code}:x")
    assert [caller.send(once)["code"] for _ in range(2)] == [code, 0]
    assert caller.simulator.refused == {str(code): 2}


async def test_statuses_and_faults_are_scripted(caller: Caller) -> None:
    assert caller.send(message(target_value="503:x"))["status"] == 503
    form = {"auth_token": caller.auth_token, "message": json.dumps(message(target_value="lost:x"))}
    assert caller.post("/server/v1/message/notification/unicast", form).fault == "lost"
    assert [received.token for received in caller.simulator.received] == ["lost:x"]


async def test_a_phone_shows_a_repeated_message_once(caller: Caller) -> None:
    for changes in (
        {"app_message_id": "1", "notify_id": 5},
        {"app_message_id": "1", "notify_id": 5, "title": "Repeated"},
        {"app_message_id": "1"},
        {"notify_id": 6},
        {"notify_id": 6, "title": "New"},
    ):
        caller.send(message({**SHOWN, **changes}))
    shown = caller.simulator.shown("CN_a")
    assert {key: notification.title for key, notification in shown.items()} == {5: "Rain", 6: "New"}
    for _ in range(2):
        caller.send(message(target_value="b"))
    assert len(caller.simulator.shown("b")) == 2
