"""A message as an HMS request, judged by the simulator's checks, which stand for Huawei's document."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import (
    IMPORTANCE_HIGH,
    IMPORTANCE_LOW,
    IMPORTANCE_UNSPECIFIED,
    AndroidStyle,
    ChannelOptions,
    Message,
)
from protos.registry.v1.apps_pb2 import CHANNEL_HMS
from services.delivery.channels.hms.request import MAX_BYTES, HmsMessage
from services.domain.channel_credentials.hms import HmsCredentials
from services.domain.channel_receipts.receipts import ReceiptTags
from services.domain.master_key import MasterKey
from services.hms_simulator.requests import validate

NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 3_600_500
MAX_MSGID = 2**53 - 1
CLIENT = HmsCredentials("1", "s", categories=frozenset({"IM", "WORK"}), badge_class="com.example.Main")
URGENT = ChannelOptions(importance=IMPORTANCE_HIGH)


def body_of(message: Message, msgid: int = 7, importance: Any = IMPORTANCE_UNSPECIFIED, **options: Any) -> Any:
    channel = ChannelOptions(importance=importance, category=options.pop("category", ""))
    client, is_plain = options.pop("client", CLIENT), options.pop("is_plain", False)
    made = HmsMessage(message, options.pop("expires_ms", EXPIRES_MS), channel, client)
    body = made.body(msgid, ["a", "b"], NOW_MS, is_plain=is_plain, **options)
    validate(body, may_be_urgent=True)
    return json.loads(body)


def notification(content: str = "Hello", extra: str | None = None, **style: Any) -> Message:
    fields: dict[str, Any] = {"title": "News", "sound": True, "badge": 3, **style}
    return Message(is_notif=True, content=content, extra=extra, android=AndroidStyle(**fields))


def test_a_notification_is_shown_by_the_system_to_all_devices_of_the_request() -> None:
    body = body_of(notification(extra="campaign"))
    frame = json.loads(json.loads(body["message"].pop("data"))["carillon"])
    assert body == {
        "message": {
            "token": ["a", "b"],
            "android": {
                "ttl": "3600s",
                "category": "MARKETING",
                "notification": {
                    "title": "News",
                    "body": "Hello",
                    "click_action": {"type": 3},
                    "tag": "carillon-7",
                    "importance": "NORMAL",
                    "foreground_show": False,
                    "badge": {"set_num": 3, "class": "com.example.Main"},
                },
            },
        }
    }
    assert (frame["msgid"], frame["extra"], frame["content"], "title" in frame) == (7, "campaign", "", False)


@pytest.mark.parametrize(
    ("action", "param", "opens"),
    [
        (0, "", {"type": 3}),
        (1, "", {"type": 3}),
        (2, '"https://example.org/a"', {"type": 2, "url": "https://example.org/a"}),
        (2, '"http://example.org"', {"type": 3}),
        (2, "", {"type": 3}),
        (3, '"intent://x#Intent;scheme=app;end"', {"type": 1, "intent": "intent://x#Intent;scheme=app;end"}),
        (3, "{}", {"type": 3}),
        (4, '{"jump-button":"Go"}', {"type": 3}),
        (8, "", {"type": 3}),
    ],
)
def test_what_a_click_opens(action: int, param: str, opens: dict[str, Any]) -> None:
    shown = body_of(notification(click_action=action, click_param_json=param))["message"]["android"]["notification"]
    assert shown["click_action"] == opens


@pytest.mark.parametrize(
    ("importance", "is_plain", "level", "urgency"),
    [
        (IMPORTANCE_UNSPECIFIED, False, "NORMAL", "NORMAL"),
        (IMPORTANCE_LOW, False, "LOW", "NORMAL"),
        (IMPORTANCE_HIGH, False, "HIGH", "HIGH"),
        (IMPORTANCE_HIGH, True, "NORMAL", "NORMAL"),
    ],
)
def test_importance(importance: Any, is_plain: bool, level: str, urgency: str) -> None:
    shown = body_of(notification(), importance=importance, is_plain=is_plain)["message"]["android"]
    assert (shown["notification"]["importance"], "urgency" in shown) == (level, False)
    data = body_of(Message(content="x"), importance=importance, is_plain=is_plain)["message"]["android"]
    assert (data["urgency"], "notification" in data, "category" in data) == (urgency, False, False)


@pytest.mark.parametrize(
    ("wanted", "category"), [("", "MARKETING"), ("IM", "IM"), ("WORK", "WORK"), ("FINANCE", "MARKETING")]
)
def test_a_message_has_a_category_that_is_granted(wanted: str, category: str) -> None:
    assert body_of(notification(), category=wanted)["message"]["android"]["category"] == category


def test_a_message_bears_a_tag_where_receipts_are_wanted() -> None:
    tags = ReceiptTags("1", CHANNEL_HMS, MasterKey(bytes(32)))
    client = HmsCredentials("1", "s", receipts=tags)
    for message in (notification(), Message(content="x")):
        assert body_of(message, client=client)["message"]["android"]["bi_tag"] == tags.tag(7)
        assert "bi_tag" not in body_of(message)["message"]["android"]


def test_a_message_for_the_app_is_data_alone() -> None:
    body = body_of(Message(content="wake up", extra="e"))
    frame = json.loads(json.loads(body["message"]["data"])["carillon"])
    assert (frame["content"], frame["extra"], frame["is_notif"]) == ("wake up", "e", 0)


def test_what_a_message_lacks_is_filled_in() -> None:
    untitled = Message(is_notif=True, content="Hello", android=AndroidStyle())
    assert body_of(untitled)["message"]["android"]["notification"]["title"] == "…"
    bare = body_of(Message(is_notif=True, android=AndroidStyle()), client=HmsCredentials("1", "s"))
    shown = bare["message"]["android"]["notification"]
    assert (shown["title"], shown["body"], "badge" in shown) == ("…", "…", False)


@pytest.mark.parametrize(("badge", "is_set"), [(0, True), (99, True), (100, False), (-1, False)])
def test_badges_that_huawei_takes(badge: int, is_set: bool) -> None:
    assert ("badge" in body_of(notification(badge=badge))["message"]["android"]["notification"]) == is_set


@pytest.mark.parametrize(("left_ms", "ttl"), [(-5, "1s"), (0, "1s"), (1_999, "1s"), (30 * 86_400_000, "1296000s")])
def test_times_to_live_that_huawei_takes(left_ms: int, ttl: str) -> None:
    assert body_of(notification(), expires_ms=NOW_MS + left_ms)["message"]["android"]["ttl"] == ttl


@given(content=st.text(max_size=9000), title=st.text(max_size=3000), extra=st.none() | st.text(max_size=6000))
def test_every_message_fits_after_it_was_shortened(content: str, title: str, extra: str | None) -> None:
    for message in (notification(content, extra, title=title), Message(content=content, extra=extra)):
        made = HmsMessage(message, EXPIRES_MS, URGENT, CLIENT)
        body = made.body(MAX_MSGID, ["t" * 130 for _ in range(3)], NOW_MS)
        assert validate(body, may_be_urgent=True).message.token
        assert len(made.body(MAX_MSGID, [], NOW_MS)) <= MAX_BYTES


def test_a_long_content_is_cut_and_the_frame_says_so() -> None:
    made = HmsMessage(notification("长" * 5000, "e" * 500), EXPIRES_MS, URGENT, CLIENT)
    shown = json.loads(made.body(7, ["a"], NOW_MS))["message"]["android"]["notification"]
    assert made.shortened == ("content",)
    assert shown["body"].endswith("…")
    assert 3900 < len(made.body(7, [], NOW_MS)) <= MAX_BYTES
