"""The simulator of Xiaomi refuses what Xiaomi's documents say it refuses, and tells what phones show."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from services.process.clock import ManualClock
from services.push_simulator.http1 import SimulatorReply
from services.xiaomi_simulator.requests import MAX_IDS, MAX_TTL_MS
from services.xiaomi_simulator.server import XiaomiApp, XiaomiSimulator

APP = XiaomiApp("com.example", "canary-secret")
FORM = "application/x-www-form-urlencoded"
SHOWN = {
    "registration_id": "a", "restricted_package_name": "com.example", "title": "Rain", "description": "from 14:00",
    "pass_through": "0", "extra.channel_id": "news",
}  # fmt: skip
DATA = {
    "registration_id": "a", "restricted_package_name": "com.example", "payload": "{}", "pass_through": "1",
    "extra.channel_id": "news",
}  # fmt: skip


class Caller:
    """Asks the simulator as a sender does, without connections."""

    def __init__(self) -> None:
        self.simulator = XiaomiSimulator(ManualClock(1_800_000_000_000))
        self.simulator.register(APP)

    def send(self, form: dict[str, str], **headers: str) -> dict[str, Any]:
        reply = self.post(urlencode(form).encode(), **headers)
        return {"status": reply.status, **json.loads(reply.body or b"{}")}

    def post(self, body: bytes, path: str = "/v3/message/regid", **headers: str) -> SimulatorReply:
        named = {"content-type": FORM, "authorization": "key=canary-secret"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.simulator.reply_to([(":method", "POST"), (":path", path), *named.items()], body)

    def code(self, body: bytes, **headers: str) -> int:
        code: int = json.loads(self.post(body, **headers).body)["code"]
        return code


@pytest.fixture
async def caller() -> Caller:
    return Caller()


@pytest.mark.parametrize(
    "form",
    [
        SHOWN,
        DATA,
        {**DATA, "title": "Rain", "description": "from 14:00"},
        {**SHOWN, "title": "雨" * 49, "description": "雨" * 127, "payload": "a&b=c"},
        {**SHOWN, "notify_type": "-1", "time_to_live": str(MAX_TTL_MS), "notify_id": str(2**31 - 1)},
        {**SHOWN, "notify_type": "7", "notify_id": "0", "extra.notify_foreground": "0", "extra.only_send_once": "1"},
        {**SHOWN, "extra.notify_effect": "1"},
        {**SHOWN, "extra.notify_effect": "2", "extra.intent_uri": "intent:#Intent;end"},
        {**SHOWN, "extra.notify_effect": "3", "extra.web_uri": "https://example.org"},
        {**SHOWN, "extra.jobkey": "aZ0_-" * 4},
        {
            **SHOWN, "extra.callback": "https://example.org", "extra.callback.param": "p" * 256,
            "extra.callback.type": "243",
        },
        {**SHOWN, **{f"extra.own{number}": "x" * 1024 for number in range(10)}},
        {**SHOWN, "registration_id": ",".join("a" * MAX_IDS)},
    ],
)  # fmt: skip
async def test_right_requests(caller: Caller, form: dict[str, str]) -> None:
    answer = caller.send(form)
    assert (answer["status"], answer["result"], answer["code"]) == (200, "ok", 0)
    assert answer["data"]["id"]
    assert answer["trace_id"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sound": "x"}, 10008),
        ({"extra": "x"}, 10008),
        ({"registration_id": ""}, 10016),
        ({"restricted_package_name": ""}, 10016),
        ({"title": ""}, 10016),
        ({"title": " "}, 10016),
        ({"description": ""}, 10016),
        ({"pass_through": "1"}, 10016),
        ({"extra.notify_effect": "2"}, 10016),
        ({"extra.notify_effect": "3"}, 10016),
        ({"registration_id": "a,,b"}, 10017),
        ({"registration_id": ",".join("a" * (MAX_IDS + 1))}, 10017),
        ({"title": "x" * 50}, 10017),
        ({"description": "x" * 128}, 10017),
        ({"pass_through": "2"}, 10017),
        ({"pass_through": "true"}, 10017),
        ({"notify_type": "0"}, 10017),
        ({"notify_type": "8"}, 10017),
        ({"time_to_live": "0"}, 10017),
        ({"time_to_live": str(MAX_TTL_MS + 1)}, 10017),
        ({"time_to_live": "1e3"}, 10017),
        ({"time_to_live": "60.0"}, 10017),
        ({"notify_id": "-1"}, 10017),
        ({"notify_id": str(2**31)}, 10017),
        ({"notify_id": ""}, 10017),
        ({"extra.notify_effect": "4"}, 10017),
        ({"extra.intent_uri": "intent:#Intent;end"}, 10017),
        ({"extra.notify_effect": "2", "extra.intent_uri": "x", "extra.web_uri": "x"}, 10017),
        ({"extra.notify_foreground": "yes"}, 10017),
        ({"extra.jobkey": "x" * 21}, 10017),
        ({"extra.jobkey": "a b"}, 10017),
        ({"extra.jobkey": ""}, 10017),
        ({"extra.callback.param": "雨" * 86}, 10017),
        ({"extra.callback.type": "256"}, 10017),
        ({f"extra.own{number}": "x" for number in range(11)}, 10017),
        ({"extra.own": "x" * 1025}, 10017),
        ({"extra." + "x" * 1025: "x"}, 10017),
        ({"extra.channel_id": ""}, 27001),
        ({"restricted_package_name": "com.other"}, 22006),
    ],
)
async def test_what_is_refused(caller: Caller, changes: dict[str, str], code: int) -> None:
    answer = caller.send({**SHOWN, **changes})
    assert (answer["status"], answer["result"], answer["code"]) == (200, "error", code)
    assert answer["reason"]
    assert not caller.simulator.received


async def test_bodies_that_are_no_form_are_refused(caller: Caller) -> None:
    right = urlencode(SHOWN).encode()
    assert caller.code(right, content_type=f"{FORM}; charset=UTF-8") == 0
    assert caller.code(right, content_type="application/json") == 10008
    assert caller.code(right + b"&title=Rain") == 10008
    assert caller.code(right + b"&payload=%ff") == 10008
    assert caller.code(b"") in (10008, 10016)
    assert caller.post(right, path="/v2/message/regid").status == 404


@pytest.mark.parametrize(
    "authorization", ["key=x", "key=", "", "canary-secret", "KEY=canary-secret", "Bearer canary-secret"]
)
async def test_requests_bear_the_secret_of_the_app(caller: Caller, authorization: str) -> None:
    assert caller.send(SHOWN, authorization=authorization)["code"] == 21301


async def test_a_secret_is_that_of_its_package(caller: Caller) -> None:
    caller.simulator.register(XiaomiApp("com.other", "other"))
    assert caller.send(SHOWN, authorization="key=other")["code"] == 22006
    caller.simulator.delete("com.example")
    assert caller.send(SHOWN)["code"] == 21301
    assert "canary" not in repr(APP)


@pytest.mark.parametrize(
    "code",
    [
        -1, 1, 10001, 10002, 10003, 10010, 10011, 20607, 65029, 10008, 10012, 10016, 10017, 10018, 65009, 65011, 65014,
        65015, 65036, 65037, 65038, 22102, 10022, 10023, 10024, 10027, 10028, 10034, 200001, 10004, 10005, 10013, 10014,
        10026, 10031, 10036, 21301, 21302, 21303, 21305, 22000, 22001, 22006, 22007, 22022, 26006, 27001, 10029, 65003,
        20301,
    ],
)  # fmt: skip
async def test_each_documented_code_is_scripted(caller: Caller, code: int) -> None:
    answer = caller.send({**SHOWN, "registration_id": f"b,{code}:x"})
    assert (answer["result"], answer["code"]) == ("error", code)
    assert caller.send({**SHOWN, "registration_id": f"once-{code}:x"})["code"] == code
    assert caller.send({**SHOWN, "registration_id": f"once-{code}:x"})["code"] == 0
    assert caller.simulator.refused == {str(code): 2}


async def test_statuses_are_scripted_by_three_digits(caller: Caller) -> None:
    assert caller.send({**SHOWN, "registration_id": "503:x"})["status"] == 503
    assert caller.send({**SHOWN, "registration_id": "0:x"})["code"] == 0
    assert caller.post(urlencode({**SHOWN, "registration_id": "lost:x"}).encode()).fault == "lost"
    assert [received.token for received in caller.simulator.received] == ["0:x", "lost:x"]


async def test_a_phone_shows_a_repeated_message_once(caller: Caller) -> None:
    for changes in (
        {"extra.jobkey": "1", "notify_id": "5"},
        {"extra.jobkey": "1", "notify_id": "5", "title": "Repeated"},
        {"extra.jobkey": "1"},
        {"notify_id": "6"},
        {"notify_id": "6", "title": "New"},
        {"registration_id": "b", "extra.jobkey": "1"},
    ):
        caller.send({**SHOWN, **changes})
    caller.send(DATA)
    shown = caller.simulator.shown("a")
    assert {key: form.title for key, form in shown.items()} == {5: "Rain", 6: "New"}
    assert len(caller.simulator.shown("b")) == 1
    for _ in range(2):
        caller.send({**SHOWN, "registration_id": "c"})
    assert len(caller.simulator.shown("c")) == 2
    assert caller.simulator.batches == [1] * 9


async def test_own_extras_are_kept_beside_the_known_fields(caller: Caller) -> None:
    caller.send({**SHOWN, "extra.msgid": "7", "payload": "a&b"})
    message = caller.simulator.received[0].message
    assert (dict(message.extras), message.form.payload, message.form.channel_id) == ({"msgid": "7"}, "a&b", "news")
