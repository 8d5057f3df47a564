"""A notification as vivo's request, judged by the simulator's checks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import AndroidStyle, ChannelOptions, Message
from services.delivery.channels.batches.display import wide
from services.delivery.channels.vivo.request import VivoMessage
from services.domain.channel_credentials.vivo import VivoCredentials
from services.vivo_simulator.requests import validate

NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 3_600_500
MAX_MSGID = 2**53 - 1
ACCOUNT = VivoCredentials("10004", "25509283-3767", "", frozenset(("IM", "NEWS")))


def body_of(message: Message, category: str = "", **changes: Any) -> Any:
    options = ChannelOptions(category=category)
    made = VivoMessage(message, changes.pop("expires_ms", EXPIRES_MS), options, ACCOUNT)
    body = made.body(changes.pop("msgid", 7), ["a"], NOW_MS, **changes)
    validate(body)
    return json.loads(body)


def notification(content: str = "Hello", extra: str | None = None, **style: Any) -> Message:
    return Message(is_notif=True, content=content, extra=extra, android=AndroidStyle(**{"title": "News", **style}))


def test_a_notification_is_shown_by_the_system_and_the_whole_message_is_in_its_map() -> None:
    body = body_of(notification(extra="campaign"))
    frame = json.loads(body.pop("clientCustomMap")["carillon"])
    assert (frame["msgid"], frame["extra"], frame["content"], frame["title"]) == (7, "campaign", "Hello", "News")
    request_id = body.pop("requestId")
    assert request_id == body_of(notification("other"))["requestId"]
    assert len(request_id) <= 64
    assert body == {
        "appId": "10004", "regId": "a", "notifyType": 1, "title": "News", "content": "Hello", "timeToLive": 3600,
        "skipType": 1, "networkType": -1, "classification": 0, "pushMode": 0, "notifyId": 8, "foregroundShow": False,
    }  # fmt: skip


def test_texts_are_cut_for_the_phone_where_chinese_characters_count_as_two() -> None:
    body = body_of(notification("天" * 200, title="标" * 90))
    assert (body["title"], body["content"]) == ("标" * 19 + "…", "天" * 49 + "…")
    body = body_of(notification("a" * 200, title="b" * 40))
    assert (body["title"], body["content"]) == ("b" * 40, "a" * 99 + "…")


@pytest.mark.parametrize(
    ("sound", "vibrate", "kind"), [(False, False, 1), (True, False, 2), (False, True, 3), (True, True, 4)]
)
def test_sound_and_vibration(sound: bool, vibrate: bool, kind: int) -> None:
    assert body_of(notification(sound=sound, vibrate=vibrate))["notifyType"] == kind


@pytest.mark.parametrize(
    ("category", "told", "quota"),
    [
        ("", (0, None), "operational"),
        ("ORDER", (0, None), "operational"),
        ("NEWS", (0, "NEWS"), "operational"),
        ("IM", (1, "IM"), "system"),
    ],
)
def test_the_category_says_whether_a_message_is_of_the_system(category: str, told: tuple[Any, ...], quota: str) -> None:
    body = body_of(notification(), category)
    assert (body["classification"], body.get("category")) == told
    assert VivoMessage(notification(), EXPIRES_MS, ChannelOptions(category=category), ACCOUNT).quota == quota
    plain = body_of(notification(), category, is_plain=True)
    assert (plain["classification"], plain.get("category")) == (0, None)


@pytest.mark.parametrize(
    ("action", "param", "kind", "content"),
    [
        (2, "https://example.org/", 2, "https://example.org/"),
        (2, "https://example.org/" + "x" * 1024, 1, None),
        (3, "intent:#Intent;end", 4, "intent:#Intent;end"),
        (5, "x", 1, None),
    ],
)
def test_a_tap_opens_what_vivo_can_open(action: int, param: str, kind: int, content: str | None) -> None:
    body = body_of(notification(click_action=action, click_param_json=json.dumps(param)))
    assert (body["skipType"], body.get("skipContent")) == (kind, content)


def test_what_a_message_lacks_is_filled_in_and_times_to_live_have_bounds() -> None:
    for expires_ms, ttl in ((NOW_MS - 5, 60), (NOW_MS + 40 * 86_400_000, 86_400)):
        body = body_of(Message(is_notif=True, android=AndroidStyle()), expires_ms=expires_ms)
        assert (body["title"], body["content"], body["timeToLive"]) == ("…", "…", ttl)


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_every_notification_fits(content: str, extra: str) -> None:
    body = body_of(notification(content, extra, title=content[:100]), msgid=MAX_MSGID)
    assert (wide(body["title"]) <= 40, wide(body["content"]) <= 100) == (True, True)
