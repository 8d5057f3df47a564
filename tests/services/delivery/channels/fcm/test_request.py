"""A message as an FCM request, judged by Google's own schema."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.delivery.channels.fcm.request import MAX_PAYLOAD_BYTES, FcmTarget, fcm_content, fcm_request
from testkit.delivery.fcm_schema import problems

NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 3_600_500
MAX_MSGID = 2**53 - 1
TARGET = FcmTarget("cXz1y:APA91bH")


def body_of(message: Message, msgid: int = 7, target: FcmTarget = TARGET, **options: Any) -> dict[str, Any]:
    body = fcm_request(fcm_content(message, EXPIRES_MS), target, msgid, EXPIRES_MS, NOW_MS, **options)
    assert problems(body) == []
    return dict(json.loads(body))


def notification(content: str = "Hello", extra: str | None = None, **style: Any) -> Message:
    given: dict[str, Any] = {"title": "News", "sound": True, "vibrate": True, "badge": 3, **style}
    return Message(is_notif=True, content=content, extra=extra, android=AndroidStyle(**given))


def test_a_notification_is_shown_by_the_system() -> None:
    message = notification(extra="campaign", click_action=2, click_param_json='"https://example.org"')
    body = body_of(message)
    frame = json.loads(body["message"]["data"].pop("carillon"))
    assert body == {
        "message": {
            "token": "cXz1y:APA91bH",
            "notification": {"title": "News", "body": "Hello"},
            "data": {},
            "android": {
                "ttl": "3600s",
                "priority": "HIGH",
                "notification": {
                    "tag": "carillon-7",
                    "sound": "default",
                    "defaultVibrateTimings": True,
                    "notificationCount": 3,
                },
            },
        }
    }
    assert (frame["msgid"], frame["extra"], frame["content"], "title" in frame) == (7, "campaign", "", False)
    assert frame["click"] == {"action": 2, "param": "https://example.org"}


def test_an_intent_is_opened_by_the_system() -> None:
    android = body_of(notification(click_action=3, click_param_json='"org.example.OPEN"'))["message"]["android"]
    assert android["notification"]["clickAction"] == "org.example.OPEN"
    for wrong in ("{}", ""):
        android = body_of(notification(click_action=3, click_param_json=wrong))["message"]["android"]
        assert "clickAction" not in android["notification"]


@pytest.mark.parametrize("action", [4, 5, 6, 7, 8])
def test_rich_content_is_shown_by_the_app(action: int) -> None:
    message = body_of(notification(click_action=action, click_param_json="{}"))["message"]
    assert ("notification" in message, "notification" in message["android"]) == (False, False)
    assert message["android"]["priority"] == "HIGH"
    assert json.loads(message["data"]["carillon"])["content"] == "Hello"


def test_a_message_for_the_app() -> None:
    message = body_of(Message(content="x"))["message"]
    assert (message["android"], "notification" in message) == ({"ttl": "3600s", "priority": "NORMAL"}, False)


def test_installation_ids_dry_runs_and_lifetimes() -> None:
    body = body_of(notification(), target=FcmTarget("fid-1", is_fid=True), dry=True)
    assert (body["validateOnly"], body["message"]["fid"], "token" in body["message"]) == (True, "fid-1", False)
    content = fcm_content(notification(badge=-1), EXPIRES_MS)
    for expires_ms, ttl in ((NOW_MS - 1, "0s"), (NOW_MS + 90 * 86_400_000, "2419200s")):
        made = fcm_request(content, TARGET, 7, expires_ms, NOW_MS)
        assert problems(made) == []
        android = json.loads(made)["message"]["android"]
        assert (android["ttl"], "notificationCount" in android["notification"]) == (ttl, False)


@given(
    st.builds(
        lambda notif, action, content, extra, title, size: Message(
            is_notif=notif,
            content=content * size,
            extra=extra * size,
            android=AndroidStyle(title=title * size, click_action=action, click_param_json=json.dumps(title * size)),
        ),
        st.booleans(),
        st.integers(0, 8),
        *[st.text(max_size=20) for _ in range(3)],
        st.integers(1, 400),
    )
)
def test_every_message_fits_and_says_what_was_shortened(message: Message) -> None:
    content = fcm_content(message, EXPIRES_MS)
    body = body_of(message, MAX_MSGID)["message"]
    parts = [body["data"], body["notification"]] if "notification" in body else [body["data"]]
    assert (
        sum(len(json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode()) for part in parts)
        <= MAX_PAYLOAD_BYTES
    )
    assert tuple(json.loads(body["data"]["carillon"]).get("shortened", ())) == content.shortened


def test_a_long_content_is_cut_and_no_more_than_needed() -> None:
    body = body_of(notification("世" * 5_000))["message"]
    length = len(body["notification"]["body"])
    assert body["notification"]["body"] == "世" * (length - 1) + "…"
    assert 1_200 < length < MAX_PAYLOAD_BYTES // 3


WRONG: list[tuple[str, Any]] = [
    ("message/tokens", {"message": {"token": "x", "tokens": ["x"]}}),
    ("android/ttl", {"message": {"token": "x", "android": {"ttl": "2419201s"}}}),
    ("priority", {"message": {"token": "x", "android": {"priority": "high"}}}),
    ("exactly one", {"message": {"token": "x", "fid": "y"}}),
    ("exactly one", {"message": {}}),
    ("reserved", {"message": {"token": "x", "data": {"from": "x"}}}),
    ("data", {"message": {"token": "x", "data": {"a": 1}}}),
    ("notificationCount", {"message": {"token": "x", "android": {"notification": {"notificationCount": "1"}}}}),
]


@pytest.mark.parametrize(("told", "body"), WRONG)
def test_the_judge_finds_what_is_wrong(told: str, body: Any) -> None:
    found = problems(json.dumps(body).encode())
    assert any(told in each or told.rpartition("/")[2] in each for each in found), found
