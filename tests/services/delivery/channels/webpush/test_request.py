"""A message as a Web Push request: its text, how it is shortened, its headers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.delivery.channels.webpush.encryption import MAX_BODY_BYTES, Subscription, max_plaintext_bytes
from services.delivery.channels.webpush.request import (
    SMALL_BODY_BYTES,
    WebPushRequest,
    WebPushText,
    topic,
    urgency,
    web_push_text,
)

NOW_MS = 1_800_000_000_000
MAX_MSGID = 2**53 - 1
LINK = json.dumps("https://example.org/news")


def notification(content: str, *, title: str = "News", extra: str | None = None, param: str = LINK) -> Message:
    style = AndroidStyle(title=title, sound=True, click_action=2, click_param_json=param, badge=-1)
    return Message(is_notif=True, content=content, extra=extra, android=style)


def frame(text: WebPushText, msgid: int = 7) -> dict[str, Any]:
    return dict(json.loads(text.push.text(msgid)))


def test_the_worker_gets_the_frame_that_a_connection_brings() -> None:
    text = web_push_text(notification("Hello, 世界", extra="campaign"), 1_900)
    assert text.shortened == ()
    assert frame(text) == {
        "type": "push",
        "msgid": 7,
        "is_notif": 1,
        "content": "Hello, 世界",
        "title": "News",
        "sound": True,
        "vibrate": False,
        "removable": False,
        "click": {"action": 2, "param": "https://example.org/news"},
        "badge": -1,
        "extra": "campaign",
        "expires_at": 1_900,
    }


@pytest.mark.parametrize("limit", [MAX_BODY_BYTES, SMALL_BODY_BYTES])
@pytest.mark.parametrize("letter", ["a", "世", "😀", '"', "\n", "\x00"])
def test_a_long_content_is_cut_to_what_fits_and_no_more(letter: str, limit: int) -> None:
    text = web_push_text(notification(letter * 5_000, extra="x"), NOW_MS, limit)
    found, most = frame(text), max_plaintext_bytes(limit)
    assert text.shortened == ("content",) == tuple(found["shortened"])
    assert found["content"] == letter * (len(found["content"]) - 1) + "…"
    assert (found["extra"], found["click"]["action"]) == ("x", 2)
    length = len(text.push.text(MAX_MSGID))
    assert most - len(json.dumps(letter, ensure_ascii=False).encode()) - 4 < length <= most


@pytest.mark.parametrize(
    ("message", "shortened"),
    [
        (notification("c" * 50, extra="x" * 4_000), ["extra"]),
        (notification("c" * 5_000, extra="x" * 4_000), ["extra", "content"]),
        (notification("c" * 50, param=json.dumps("u" * 4_000)), ["click"]),
        (notification("c" * 50, extra="x" * 4_000, param=json.dumps("u" * 4_000)), ["extra", "click"]),
        (notification("c" * 50, title="t" * 4_000), ["click", "title"]),
        (notification("c" * 5_000, title="t" * 4_000, extra="x"), ["extra", "click", "title", "content"]),
        (Message(content="c" * 5_000, extra="x"), ["content"]),
        (Message(content="c" * 50, extra="x" * 4_000), ["extra"]),
        (Message(content="c" * 5_000, extra="x" * 5_000), ["content", "extra"]),
    ],
)
def test_what_is_left_out_where_the_content_is_not_enough(message: Message, shortened: list[str]) -> None:
    text = web_push_text(message, NOW_MS)
    found = frame(text)
    assert found["shortened"] == shortened == list(text.shortened)
    assert ("extra" in found) == (message.HasField("extra") and "extra" not in shortened)
    if message.is_notif:
        assert found["click"]["action"] == (1 if "click" in shortened else 2)
        assert len(found["content"]) >= min(100, len(message.content))
        assert found["title"] == message.android.title or found["title"] == "t" * 99 + "…"
    else:
        assert found["content"] in ("", message.content)


@given(
    st.builds(
        lambda notif, content, extra, title, size: Message(
            is_notif=notif,
            content=content * size,
            extra=extra * size,
            android=AndroidStyle(title=title * size, click_action=3, click_param_json=json.dumps(title * size)),
        ),
        st.booleans(),
        *[st.text(max_size=20) for _ in range(3)],
        st.integers(1, 400),
    ),
    st.sampled_from([MAX_BODY_BYTES, SMALL_BODY_BYTES]),
)
def test_every_message_fits_with_every_id(message: Message, limit: int) -> None:
    text = web_push_text(message, NOW_MS, limit)
    assert len(text.push.text(MAX_MSGID)) <= max_plaintext_bytes(limit)
    assert bool(text.shortened) == ("shortened" in frame(text))


def request_of(message: Message, expires_ms: int) -> WebPushRequest:
    text, small = web_push_text(message, expires_ms), web_push_text(message, expires_ms, SMALL_BODY_BYTES)
    point = bytes.fromhex(
        "042571b2becdfde360551aaf1ed0f4cd366c11cebe555f89bcb7b186a53339173168ece2ebe018597bd30479b86e3c8f8eced577ca5918"
        "7e9246990db682008b0e"
    )
    subscription = Subscription("https://push.example.org/x", point, bytes(16))
    return WebPushRequest(subscription, MAX_MSGID, text.push, small.push, expires_ms, urgency(message))


def test_the_headers_of_a_request() -> None:
    request = request_of(notification("x"), NOW_MS + 90_999)
    assert dict(request.headers("vapid …", NOW_MS)) == {
        "authorization": "vapid …",
        "ttl": "90",
        "urgency": "high",
        "topic": f"carillon-{MAX_MSGID}",
        "content-encoding": "aes128gcm",
        "content-type": "application/octet-stream",
    }
    assert len(topic(MAX_MSGID)) <= 32
    assert dict(request.headers("", NOW_MS + 200_000))["ttl"] == "0"
    assert dict(request_of(notification("x"), NOW_MS + 86_400_000 * 60).headers("", NOW_MS))["ttl"] == "2592000"
    assert urgency(Message(content="x")) == "normal"


def test_a_push_service_that_takes_less_gets_less() -> None:
    request = request_of(notification("c" * 5_000), NOW_MS)
    assert len(request.body()) <= MAX_BODY_BYTES
    assert len(request.body(is_small=True)) <= SMALL_BODY_BYTES
    assert request.body() != request.body()
