"""A message as Xiaomi's form, judged by the simulator's checks."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import AndroidStyle, ChannelOptions, Message
from protos.registry.v1.apps_pb2 import CHANNEL_XIAOMI
from services.delivery.channels.xiaomi.request import MAX_PAYLOAD_BYTES, XiaomiMessage
from services.domain.channel_credentials.xiaomi import XiaomiCredentials
from services.domain.channel_receipts.receipts import Callback, ReceiptTags
from services.domain.master_key import MasterKey
from services.xiaomi_simulator.requests import XiaomiForm, validate

NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 3_600_500
MAX_MSGID = 2**53 - 1
ACCOUNT = XiaomiCredentials("org.example.weather", "", {"MARKETING": "1", "IM": "2"})
FORM = {"content-type": "application/x-www-form-urlencoded;charset=UTF-8"}


def form_of(
    message: Message,
    category: str = "",
    account: XiaomiCredentials = ACCOUNT,
    msgid: int = 7,
    expires_ms: int = EXPIRES_MS,
) -> XiaomiForm:
    made = XiaomiMessage(message, expires_ms, ChannelOptions(category=category), account)
    request = validate(FORM, made.body(msgid, ["a", "b"], NOW_MS))
    assert (request.tokens, request.message.extras) == (["a", "b"], {})
    return request.message.form


def notification(content: str = "Hello", extra: str | None = None, **style: Any) -> Message:
    return Message(is_notif=True, content=content, extra=extra, android=AndroidStyle(**{"title": "News", **style}))


def test_a_notification_is_shown_by_the_system_and_the_whole_message_is_its_payload() -> None:
    form = form_of(notification(extra="campaign"))
    frame = json.loads(form.payload)
    assert (frame["msgid"], frame["extra"], frame["content"], frame["title"]) == (7, "campaign", "Hello", "News")
    assert (form.title, form.description, form.pass_through, form.notify_type) == ("News", "Hello", 0, -1)
    assert (form.notify_id, form.jobkey, form.notify_effect, form.notify_foreground) == (8, "c-7", 1, 0)
    assert (form.time_to_live, form.channel_id, form.callback) == (3_600_500, "1", "")


def test_a_message_for_the_app_passes_through() -> None:
    form = form_of(Message(content="wake up"))
    assert (form.pass_through, form.title, json.loads(form.payload)["content"]) == (1, "", "wake up")


def test_texts_are_cut_for_the_phone_and_whole_for_the_app() -> None:
    form = form_of(notification("天" * 500, title="标" * 90))
    assert (form.title, form.description) == ("标" * 48 + "…", "天" * 126 + "…")
    frame = json.loads(form.payload)
    assert (frame["content"], frame["title"], "shortened" in frame) == ("天" * 500, "标" * 90, False)


@pytest.mark.parametrize(
    ("category", "channel", "days"), [("", "1", 1), ("ORDER", "1", 1), ("MARKETING", "1", 1), ("IM", "2", 10)]
)
def test_the_category_chooses_the_channel_and_how_long_xiaomi_keeps_a_message(
    category: str, channel: str, days: int
) -> None:
    form = form_of(notification(), category, expires_ms=NOW_MS + 40 * 86_400_000)
    assert (form.channel_id, form.time_to_live) == (channel, days * 86_400_000)
    assert XiaomiMessage(notification(), EXPIRES_MS, ChannelOptions(category=category), ACCOUNT).quota == channel


@pytest.mark.parametrize(
    ("action", "param", "effect", "uris"),
    [
        (2, "https://example.org/", 3, ("", "https://example.org/")),
        (2, "ftp://example.org/", 1, ("", "")),
        (2, "https://example.org/" + "x" * 1024, 1, ("", "")),
        (3, "intent:#Intent;end", 2, ("intent:#Intent;end", "")),
        (5, "x", 1, ("", "")),
    ],
)
def test_a_tap_opens_what_xiaomi_can_open(action: int, param: str, effect: int, uris: tuple[str, str]) -> None:
    form = form_of(notification(click_action=action, click_param_json=json.dumps(param)))
    assert (form.notify_effect, (form.intent_uri, form.web_uri)) == (effect, uris)


def test_a_message_bears_a_mark_where_receipts_are_wanted() -> None:
    tags = ReceiptTags("1", CHANNEL_XIAOMI, MasterKey(bytes(32)))
    form = form_of(notification(), account=replace(ACCOUNT, callback=Callback("https://push.example.org/x", tags)))
    assert (form.callback, form.callback_param, form.callback_type) == ("https://push.example.org/x", tags.tag(7), 243)
    assert len(tags.tag(MAX_MSGID)) <= 64


def test_what_a_message_lacks_is_filled_in() -> None:
    form = form_of(Message(is_notif=True, content=" \n", android=AndroidStyle()), expires_ms=NOW_MS - 5)
    assert (form.title, form.description, form.time_to_live) == ("…", "…", 1000)


@given(st.text(max_size=6000), st.text(max_size=3000), st.booleans())
def test_every_message_fits(content: str, extra: str, is_notif: bool) -> None:
    message = Message(is_notif=is_notif, content=content, extra=extra, android=AndroidStyle(title=content[:100]))
    form = form_of(message, msgid=MAX_MSGID)
    assert len(form.payload.encode()) <= MAX_PAYLOAD_BYTES
