"""A message as a HarmonyOS request, judged by the simulator's checks, which stand for Huawei's document."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import AndroidStyle, ChannelOptions, Message
from protos.registry.v1.apps_pb2 import CHANNEL_HARMONY
from services.delivery.channels.harmony.request import MAX_BYTES, HarmonyMessage
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.domain.channel_receipts.receipts import ReceiptTags
from services.domain.master_key import MasterKey
from services.hms_simulator.harmony_requests import validate

NOW_MS = 1_800_000_000_000
EXPIRES_MS = NOW_MS + 3_600_500
MAX_MSGID = 2**53 - 1
ACCOUNT = HarmonyAccount("3884", "k", "1045", "", categories=frozenset({"IM", "WORK"}))


def body_of(message: Message, msgid: int = 7, **options: Any) -> Any:
    channel = ChannelOptions(category=options.pop("category", ""))
    account = options.pop("account", ACCOUNT)
    made = HarmonyMessage(message, options.pop("expires_ms", EXPIRES_MS), channel, account)
    body = made.body(msgid, ["a", "b"], NOW_MS, **options)
    validate(body, made.headers["push-type"])
    return json.loads(body)


def notification(content: str = "Hello", extra: str | None = None, **style: Any) -> Message:
    fields: dict[str, Any] = {"title": "News", "sound": True, "badge": 3, **style}
    return Message(is_notif=True, content=content, extra=extra, android=AndroidStyle(**fields))


def test_a_notification_is_shown_by_the_system_and_opens_the_app_with_its_data() -> None:
    url = '"https://example.org/"'
    body = body_of(notification(extra="campaign", click_action=2, click_param_json=url))
    shown = body["payload"]["notification"]
    frame = json.loads(shown.pop("clickAction")["data"]["carillon"])
    assert (frame["msgid"], frame["extra"], frame["content"]) == (7, "campaign", "")
    assert frame["click"] == {"action": 2, "param": "https://example.org/"}
    assert shown == {
        "category": "MARKETING", "title": "News", "body": "Hello", "notifyId": 8, "foregroundShow": False,
        "badge": {"setNum": 3},
    }  # fmt: skip
    assert body["pushOptions"] == {"ttl": 3600}
    assert body["target"] == {"token": ["a", "b"]}


def test_a_message_for_the_app_is_data_alone() -> None:
    body = body_of(Message(content="wake up", extra="e"), category="IM")
    assert list(body["payload"]) == ["extraData"]
    frame = json.loads(json.loads(body["payload"]["extraData"])["carillon"])
    assert (frame["content"], frame["extra"], frame["is_notif"]) == ("wake up", "e", 0)


def test_the_header_says_what_a_request_is() -> None:
    headers = [
        HarmonyMessage(message, EXPIRES_MS, ChannelOptions(), ACCOUNT).headers
        for message in (notification(), Message(content="x"))
    ]
    assert headers == [{"push-type": "0"}, {"push-type": "6"}]


@pytest.mark.parametrize(("wanted", "category"), [("", "MARKETING"), ("IM", "IM"), ("FINANCE", "MARKETING")])
def test_a_message_has_a_category_that_is_granted(wanted: str, category: str) -> None:
    assert body_of(notification(), category=wanted)["payload"]["notification"]["category"] == category


def test_a_message_bears_a_mark_where_receipts_are_wanted() -> None:
    tags = ReceiptTags("1", CHANNEL_HARMONY, MasterKey(bytes(32)))
    account = HarmonyAccount("3884", "k", "1045", "", receipts=tags)
    for message in (notification(), Message(content="x")):
        assert body_of(message, account=account)["pushOptions"]["biTag"] == tags.tag(7)


@pytest.mark.parametrize(
    ("msgid", "notify_id"), [(1, 2), (2**31 - 2, 2**31 - 1), (2**31 - 1, 1), (MAX_MSGID, 4_194_304)]
)
def test_every_id_of_a_message_is_one_of_a_notification(msgid: int, notify_id: int) -> None:
    assert body_of(notification(), msgid)["payload"]["notification"]["notifyId"] == notify_id


def test_what_a_message_lacks_is_filled_in() -> None:
    bare = body_of(Message(is_notif=True, android=AndroidStyle()))["payload"]["notification"]
    assert (bare["title"], bare["body"], "badge" in bare) == ("…", "…", False)
    assert "badge" not in body_of(notification(badge=100))["payload"]["notification"]


def test_times_to_live_have_bounds() -> None:
    for expires_ms, ttl in ((NOW_MS - 5, 1), (NOW_MS + 40 * 86_400_000, 15 * 86_400)):
        assert body_of(notification(), expires_ms=expires_ms)["pushOptions"]["ttl"] == ttl


def test_a_check_sends_a_test_message() -> None:
    assert body_of(notification(), dry=True)["pushOptions"]["testMessage"] is True


@given(st.text(max_size=6000), st.text(max_size=3000), st.booleans())
def test_every_message_fits(content: str, extra: str, is_notif: bool) -> None:
    message = Message(is_notif=is_notif, content=content, extra=extra, android=AndroidStyle(title=content[:100]))
    made = HarmonyMessage(message, EXPIRES_MS, ChannelOptions(), ACCOUNT)
    body = made.body(MAX_MSGID, ["t" * 200] * 10, NOW_MS, dry=True)
    received = validate(body, made.headers["push-type"])
    assert len(received.message.token) == 10
    assert len(body) - len(json.dumps(["t" * 200] * 10, separators=(",", ":"))) <= MAX_BYTES
