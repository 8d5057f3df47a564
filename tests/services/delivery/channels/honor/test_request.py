"""A message as Honor's request, judged by the simulator's checks."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import IMPORTANCE_LOW, AndroidStyle, ChannelOptions, Message
from services.delivery.channels.honor.request import MAX_BYTES, HonorMessage
from services.domain.channel_credentials.honor import HonorCredentials
from services.honor_simulator.requests import validate

NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 3_600_500
MAX_MSGID = 2**53 - 1
ACCOUNT = HonorCredentials("104562917", "220099", "", frozenset(("IM",)))


def body_of(
    message: Message, options: ChannelOptions | None = None, account: HonorCredentials = ACCOUNT, **changes: Any
) -> Any:
    made = HonorMessage(message, changes.pop("expires_ms", EXPIRES_MS), options or ChannelOptions(), account)
    body = made.body(7, ["a", "b"], NOW_MS, **changes)
    validate(body)
    return json.loads(body)


def notification(content: str = "Hello", extra: str | None = None, **style: Any) -> Message:
    return Message(is_notif=True, content=content, extra=extra, android=AndroidStyle(**{"title": "News", **style}))


def test_a_notification_is_shown_by_the_system_and_the_rest_is_data() -> None:
    body = body_of(notification(extra="campaign"))
    frame = json.loads(json.loads(body.pop("data"))["carillon"])
    assert (frame["msgid"], frame["extra"], frame["content"], "title" in frame) == (7, "campaign", "", False)
    assert body == {
        "android": {
            "ttl": "3600s",
            "notification": {
                "title": "News", "body": "Hello", "clickAction": {"type": 3}, "importance": "LOW", "notifyId": 8,
                "tag": "carillon-7",
            },
        },
        "token": ["a", "b"],
    }  # fmt: skip


def test_a_message_for_the_app_is_data_alone() -> None:
    body = body_of(Message(content="wake up"))
    assert list(body["android"]) == ["ttl"]
    assert json.loads(json.loads(body["data"])["carillon"])["content"] == "wake up"


@pytest.mark.parametrize(
    ("options", "importance"),
    [
        (ChannelOptions(category="IM"), "NORMAL"),
        (ChannelOptions(category="IM", importance=IMPORTANCE_LOW), "LOW"),
        (ChannelOptions(category="ORDER"), "LOW"),
        (ChannelOptions(), "LOW"),
    ],
)
def test_only_messages_of_categories_that_serve_are_important(options: ChannelOptions, importance: str) -> None:
    assert body_of(notification(), options)["android"]["notification"]["importance"] == importance


@pytest.mark.parametrize(
    ("action", "param", "click"),
    [
        (2, "https://example.org/", {"type": 2, "url": "https://example.org/"}),
        (2, "http://example.org/", {"type": 3}),
        (3, "intent:#Intent;end", {"type": 1, "intent": "intent:#Intent;end"}),
        (5, "x", {"type": 3}),
    ],
)
def test_a_tap_opens_what_honor_can_open(action: int, param: str, click: dict[str, Any]) -> None:
    message = notification(click_action=action, click_param_json=json.dumps(param))
    assert body_of(message)["android"]["notification"]["clickAction"] == click


def test_badges_need_the_class_of_the_launcher() -> None:
    account = replace(ACCOUNT, badge_class="org.example.Main")
    badges = [
        body_of(notification(badge=badge), account=each)["android"]["notification"].get("badge")
        for badge, each in ((3, account), (100, account), (3, ACCOUNT))
    ]
    assert badges == [{"setNum": 3, "badgeClass": "org.example.Main"}, None, None]


def test_times_to_live_have_bounds_and_a_check_is_a_test_message() -> None:
    for expires_ms, ttl in ((NOW_MS - 5, "1s"), (NOW_MS + 40 * 86_400_000, "1296000s")):
        assert body_of(notification(), expires_ms=expires_ms)["android"]["ttl"] == ttl
    assert body_of(notification(), dry=True)["android"]["targetUserType"] == 1


@given(st.text(max_size=6000), st.text(max_size=3000), st.booleans())
def test_every_message_fits(content: str, extra: str, is_notif: bool) -> None:
    message = Message(is_notif=is_notif, content=content, extra=extra, android=AndroidStyle(title=content[:100]))
    body = HonorMessage(message, EXPIRES_MS, ChannelOptions(), ACCOUNT).body(MAX_MSGID, ["t"], NOW_MS, dry=True)
    assert validate(body).tokens == ["t"]
    assert len(body) - len('"t"') <= MAX_BYTES
