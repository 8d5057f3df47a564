"""APNs payloads, byte for byte."""

import json
from typing import Any

import pytest

from protos.push.v1.push_pb2 import AndroidStyle, IosStyle, Message
from services.domain.apns_payload import (
    MAX_PAYLOAD_BYTES,
    carrying_msgid,
    max_size_bytes,
    payload,
    with_badge,
    with_msgid,
)


def ios(content: str = "hello", is_notif: bool = True, extra: str | None = None, **style: Any) -> Message:
    return Message(is_notif=is_notif, content=content, extra=extra, ios=IosStyle(**style))


GOLDEN = [
    (ios(), '{"aps":{"alert":"hello"}}'),
    (ios('你好 \u2028 "q"'), '{"aps":{"alert":"你好 \u2028 \\"q\\""}}'),
    (ios("a\nb\x01/😀"), '{"aps":{"alert":"a\\nb\\u0001/😀"}}'),
    (ios(title="T"), '{"aps":{"alert":{"title":"T","body":"hello"}}}'),
    (ios(badge=0), '{"aps":{"alert":"hello","badge":0}}'),
    (ios("", badge=-1), '{"aps":{"badge":0}}'),
    (ios(badge=2**31 - 1), '{"aps":{"alert":"hello","badge":2147483647}}'),
    (ios(badge=-1), '{"aps":{"badge":0,"alert":"hello"}}'),
    (ios(sound="bell"), '{"aps":{"alert":"hello","sound":"bell"}}'),
    (ios(sound=""), '{"aps":{"alert":"hello"}}'),
    (ios(content_available=True), '{"aps":{"alert":"hello","content-available":1}}'),
    (ios(content_available=False), '{"aps":{"alert":"hello"}}'),
    (ios(category="c"), '{"aps":{"alert":"hello","category":"c"}}'),
    (ios(extra='{"k":1}'), '{"aps":{"alert":"hello"},"extra":"{\\"k\\":1}"}'),
    (ios(extra=""), '{"aps":{"alert":"hello"},"extra":""}'),
    (ios('{"loc-key":"K","n":[1,null]}', content_is_json=True), '{"aps":{"alert":{"loc-key":"K","n":[1,null]}}}'),
    (ios(f'{{"n":{10**30}}}', content_is_json=True), f'{{"aps":{{"alert":{{"n":{10**30}}}}}}}'),
    (ios('{"a":1}', content_is_json=True, title="T"), '{"aps":{"alert":{"a":1}}}'),
    (ios('{"loc-key":"K"}'), '{"aps":{"alert":"{\\"loc-key\\":\\"K\\"}"}}'),
    (ios("[1]", content_is_json=True), '{"aps":{"alert":"[1]"}}'),
    (ios("{", content_is_json=True), '{"aps":{"alert":"{"}}'),
    (
        ios(badge=3, sound="s", content_available=True, category="c", extra="x", title="T"),
        '{"aps":{"alert":{"title":"T","body":"hello"},"badge":3,"sound":"s","content-available":1,"category":"c"},'
        '"extra":"x"}',
    ),
    (
        ios(is_notif=False, sound="bell", badge=3, category="c"),
        '{"aps":{"content-available":1},"content":"hello"}',
    ),
    (
        ios('{"a":1}', is_notif=False, extra="x", content_is_json=True),
        '{"aps":{"content-available":1},"content":{"a":1},"extra":"x"}',
    ),
    (
        ios('{"id":7,"aps":{"alert":"A","badge":5,"sound":"s"}}', content_is_json=True),
        '{"aps":{"alert":"A","badge":5,"sound":"s"},"id":7}',
    ),
    (
        ios('{"id":7,"aps":{"alert":"A","badge":5}}', badge=-1, content_is_json=True, extra="x"),
        '{"aps":{"badge":0,"alert":"A"},"id":7,"extra":"x"}',
    ),
    (
        ios('{"aps":{"alert":"A","badge":5},"id":7}', badge=6, category="c", content_is_json=True),
        '{"aps":{"alert":"A","badge":6,"category":"c"},"id":7}',
    ),
    (
        ios('{"aps":{},"id":7}', is_notif=False, content_is_json=True),
        '{"aps":{"content-available":1},"id":7}',
    ),
    (ios('{"aps":"A"}', content_is_json=True), '{"aps":{"alert":{"aps":"A"}}}'),
    (ios('{"aps":{}}'), '{"aps":{"alert":"{\\"aps\\":{}}"}}'),
    (Message(is_notif=True, content="plain", android=AndroidStyle(title="T")), '{"aps":{"alert":"plain"}}'),
]


@pytest.mark.parametrize(("message", "text"), GOLDEN, ids=range(len(GOLDEN)))
def test_payload_bytes(message: Message, text: str) -> None:
    assert payload(message) == text.encode()
    json.loads(text)


@pytest.mark.parametrize(("message", "text"), GOLDEN, ids=range(len(GOLDEN)))
def test_the_largest_size_counts_the_longest_number_of_a_badge_that_counts_up(message: Message, text: str) -> None:
    before = message.SerializeToString()
    longer = len("2147483647") - len("0") if message.is_notif and message.ios.badge < 0 else 0
    assert max_size_bytes(message) == len(text.encode()) + longer
    assert message.SerializeToString() == before


def test_a_background_message_has_no_badge_to_count() -> None:
    message = ios(is_notif=False, badge=-1)
    assert max_size_bytes(message) == len(payload(message))


def test_a_badge_that_counts_up_is_filled_in_for_each_device() -> None:
    form = payload(ios('{"badge":0,"aps":{"badge":0}}', badge=-1, content_is_json=True))
    assert json.loads(with_badge(form, 12)) == {"aps": {"badge": 12}, "badge": 0}
    assert json.loads(with_badge(form, 0)) == json.loads(form)


WITH_MSGID = [
    (ios(), '{"aps":{"alert":"hello","mutable-content":1},"carillon":{"msgid":77}}'),
    (ios("", badge=3), '{"aps":{"badge":3},"carillon":{"msgid":77}}'),
    (ios(extra="}}"), '{"aps":{"alert":"hello","mutable-content":1},"extra":"}}","carillon":{"msgid":77}}'),
    (ios(is_notif=False), '{"aps":{"content-available":1},"content":"hello","carillon":{"msgid":77}}'),
    (
        ios('{"carillon":{"msgid":1},"aps":{"alert":"A","mutable-content":0},"id":7}', content_is_json=True),
        '{"aps":{"alert":"A","mutable-content":1},"id":7,"carillon":{"msgid":77}}',
    ),
]


@pytest.mark.parametrize(("message", "text"), WITH_MSGID)
def test_a_message_carries_its_id_and_an_alert_is_mutable(message: Message, text: str) -> None:
    before = message.SerializeToString()
    carrying = carrying_msgid(message)
    assert with_msgid(payload(carrying), 77) == text.encode()
    assert max_size_bytes(carrying) == len(text) - len("77") + len(str(2**53 - 1))
    assert message.SerializeToString() == before


def test_a_message_id_and_a_badge_that_counts_up_are_filled_in_together() -> None:
    template = payload(carrying_msgid(ios(badge=-1)))
    assert json.loads(with_badge(with_msgid(template, 2**53 - 1), 12)) == {
        "aps": {"badge": 12, "alert": "hello", "mutable-content": 1},
        "carillon": {"msgid": 2**53 - 1},
    }


def test_a_payload_without_room_for_the_id_goes_out_without_it() -> None:
    fitting = ios("x" * (MAX_PAYLOAD_BYTES - max_size_bytes(carrying_msgid(ios("x"))) + 1))
    assert max_size_bytes(carrying_msgid(fitting)) == MAX_PAYLOAD_BYTES
    longer = ios(fitting.content + "x")
    assert carrying_msgid(longer) == longer
