"""A notification as OPPO's request, judged by the simulator's checks."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import IMPORTANCE_HIGH, IMPORTANCE_LOW, AndroidStyle, ChannelOptions, Message
from protos.registry.v1.apps_pb2 import CHANNEL_OPPO
from services.delivery.channels.oppo.request import OppoMessage
from services.domain.channel_credentials.oppo import OppoCredentials
from services.domain.channel_receipts.receipts import Callback, ReceiptTags
from services.domain.master_key import MasterKey
from services.oppo_simulator.requests import validate

NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 3_600_500
MAX_MSGID = 2**53 - 1
ACCOUNT = OppoCredentials("c5c8aa64", "", frozenset(("IM", "ORDER")), {"IM": "chat"})


def shown(
    message: Message, options: ChannelOptions | None = None, account: OppoCredentials = ACCOUNT, **changes: Any
) -> Any:
    made = OppoMessage(message, changes.pop("expires_ms", EXPIRES_MS), options or ChannelOptions(), account)
    body = made.body(changes.pop("msgid", 7), ["a"], NOW_MS, **changes)
    validate(body.decode())
    request = json.loads(body)
    notification = request.pop("notification")
    assert request == {"target_type": 2, "target_value": "a", "verify_registration_id": True}
    return notification


def notification(content: str = "Hello", extra: str | None = None, **style: Any) -> Message:
    return Message(is_notif=True, content=content, extra=extra, android=AndroidStyle(**{"title": "News", **style}))


def test_a_notification_is_shown_by_the_system_and_the_whole_message_is_its_parameter() -> None:
    found = shown(notification(extra="campaign"))
    frame = json.loads(json.loads(found.pop("action_parameters"))["carillon"])
    assert (frame["msgid"], frame["extra"], frame["content"], frame["title"]) == (7, "campaign", "Hello", "News")
    assert found == {
        "app_message_id": "carillon-7", "style": 1, "title": "News", "content": "Hello", "click_action_type": 0,
        "off_line": True, "off_line_ttl": 3600, "notify_id": 8,
    }  # fmt: skip


def test_texts_are_cut_for_the_phone_and_whole_for_the_app() -> None:
    found = shown(notification("天" * 300, title="标" * 90))
    assert (found["style"], found["title"], found["content"]) == (2, "标" * 49 + "…", "天" * 127 + "…")
    frame = json.loads(json.loads(found["action_parameters"])["carillon"])
    assert (frame["content"], frame["title"], "shortened" in frame) == ("天" * 300, "标" * 90, False)


@pytest.mark.parametrize(
    ("category", "importance", "told"),
    [
        ("", None, (None, None, None)),
        ("TODO", IMPORTANCE_HIGH, (None, None, None)),
        ("IM", None, ("IM", 2, "chat")),
        ("IM", IMPORTANCE_LOW, ("IM", 1, "chat")),
        ("ORDER", IMPORTANCE_HIGH, ("ORDER", 16, None)),
    ],
)
def test_a_category_that_is_granted_has_a_level_and_perhaps_a_channel(
    category: str, importance: Any, told: tuple[Any, ...]
) -> None:
    options = ChannelOptions(category=category, importance=importance)
    found = shown(notification(), options)
    assert tuple(found.get(name) for name in ("category", "notify_level", "channel_id")) == told
    assert OppoMessage(notification(), EXPIRES_MS, options, ACCOUNT).quota == (told[0] or "MARKETING")
    plain = shown(notification(), options, is_plain=True)
    assert ("category" in plain, "notify_level" in plain) == (False, False)


@pytest.mark.parametrize(
    ("action", "param", "kind", "url"),
    [
        (2, "https://example.org/", 2, "https://example.org/"),
        (2, "https://example.org/" + "x" * 2000, 0, None),
        (3, "intent:#Intent;end", 5, "intent:#Intent;end"),
        (5, "x", 0, None),
    ],
)
def test_a_tap_opens_what_oppo_can_open(action: int, param: str, kind: int, url: str | None) -> None:
    found = shown(notification(click_action=action, click_param_json=json.dumps(param)))
    assert (found["click_action_type"], found.get("click_action_url")) == (kind, url)


def test_a_message_bears_a_mark_where_receipts_are_wanted() -> None:
    tags = ReceiptTags("1", CHANNEL_OPPO, MasterKey(bytes(32)))
    found = shown(notification(), account=replace(ACCOUNT, callback=Callback("https://push.example.org/x", tags)))
    assert (found["call_back_url"], found["call_back_parameter"]) == ("https://push.example.org/x", tags.tag(7))
    assert len(tags.tag(MAX_MSGID)) <= 50


def test_what_a_message_lacks_is_filled_in_and_times_to_live_have_bounds() -> None:
    for expires_ms, ttl in ((NOW_MS - 5, 1), (NOW_MS + 40 * 86_400_000, 864_000)):
        found = shown(Message(is_notif=True, android=AndroidStyle()), expires_ms=expires_ms)
        assert (found["title"], found["content"], found["off_line_ttl"]) == ("…", "…", ttl)


@given(st.text(max_size=6000), st.text(max_size=3000))
def test_every_notification_fits(content: str, extra: str) -> None:
    assert shown(notification(content, extra, title=content[:100]), msgid=MAX_MSGID)["notify_id"] == 4_194_304
