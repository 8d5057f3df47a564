"""Receipts of Xiaomi and OPPO: which messages and devices they are about, and what they mean."""

import contextlib
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.registry.v1.apps_pb2 import CHANNEL_OPPO, CHANNEL_XIAOMI
from services.domain.channel_receipts.oppo import EVENTS, read_oppo
from services.domain.channel_receipts.receipts import (
    MAX_RECEIPTS,
    UNKNOWN_MARK,
    ChannelReceipt,
    ReceiptKind,
    ReceiptTags,
)
from services.domain.channel_receipts.xiaomi import ASKED, TYPES, read_xiaomi
from services.domain.master_key import MasterKey

XIAOMI = ReceiptTags("1", CHANNEL_XIAOMI, MasterKey(bytes(32)))
OPPO = ReceiptTags("1", CHANNEL_OPPO, MasterKey(bytes(32)))
UNKNOWN = ChannelReceipt("a", 0, ReceiptKind.OTHER, UNKNOWN_MARK)


def xiaomi(*messages: dict[str, Any]) -> list[ChannelReceipt]:
    data = {f"sdm{number}": {"timestamp": 1, "barStatus": "Enable", **each} for number, each in enumerate(messages)}
    return list(read_xiaomi(urlencode({"data": json.dumps(data)}).encode(), XIAOMI))


def oppo(*receipts: dict[str, Any]) -> list[ChannelReceipt]:
    shared = {"messageId": "1", "appId": "c5c8", "taskId": "2", "eventTime": "1800000000000"}
    return list(read_oppo(json.dumps([{**shared, **each} for each in receipts]).encode(), OPPO))


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_xiaomi(kind: int) -> None:
    meaning, words = TYPES[kind]
    found = xiaomi({"param": XIAOMI.tag(7), "type": kind, "targets": "a,b"})
    assert found == [ChannelReceipt(address, 7, meaning, f"{kind} {words}") for address in "ab"]


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_of_oppo(event: str) -> None:
    meaning, words = EVENTS[event]
    found = oppo({"param": OPPO.tag(7), "eventType": event, "registrationIds": "a,b"})
    assert found == [ChannelReceipt(address, 7, meaning, f"{event} {words}") for address in "ab"]


def test_delivered_messages_and_dead_addresses() -> None:
    assert {kind for kind, row in TYPES.items() if row[0] is ReceiptKind.RECEIVED} == {1}
    assert {kind for kind, row in TYPES.items() if row[0] is ReceiptKind.DEAD_ADDRESS} == {16}
    assert ASKED == 243
    assert {kind for kind, row in EVENTS.items() if row[0] is ReceiptKind.RECEIVED} == {"push_arrive"}
    assert {kind for kind, row in EVENTS.items() if row[0] is ReceiptKind.DEAD_ADDRESS} == {"regid_invalid"}


@pytest.mark.parametrize("mark", ["", "carillon-7", OPPO.tag(7), XIAOMI.tag(8).replace("-8-", "-7-"), None])
def test_receipts_of_other_senders_and_forged_ones_are_counted_alone(mark: str | None) -> None:
    marked = {} if mark is None else {"param": mark}
    assert xiaomi({**marked, "type": 1, "targets": "a"}) == [UNKNOWN]
    other = {} if mark is None else {"param": XIAOMI.tag(7)}
    assert oppo({**other, "eventType": "regid_invalid", "registrationIds": "a"}) == [UNKNOWN]


def test_a_kind_that_is_not_documented_is_counted_alone() -> None:
    assert xiaomi({"param": XIAOMI.tag(7), "type": 9, "targets": "a"})[0][1:] == (7, ReceiptKind.OTHER, "other")
    found = oppo({"param": OPPO.tag(7), "eventType": "x" * 500, "registrationIds": "a"})
    assert found[0][1:] == (7, ReceiptKind.OTHER, "other")


def test_no_more_receipts_are_read_than_a_call_may_have() -> None:
    many = ",".join(map(str, range(3000)))
    assert len(xiaomi(*[{"param": XIAOMI.tag(7), "type": 1, "targets": many}] * 3)) == MAX_RECEIPTS
    assert len(oppo(*[{"param": OPPO.tag(7), "eventType": "push_arrive", "registrationIds": many}] * 3)) == MAX_RECEIPTS


@pytest.mark.parametrize(
    "body", [b"", b"data", b"data=[]", b"data=%ff", b"other=1", b"data={}&data={}", b"data=" + b"[" * 100_000]
)
def test_what_is_no_call_of_xiaomi(body: bytes) -> None:
    with pytest.raises(ValueError, match="no receipts of Xiaomi"):
        read_xiaomi(body, XIAOMI)


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b'[{"eventType":"push_arrive"}]', b"[" * 100_000])
def test_what_is_no_call_of_oppo(body: bytes) -> None:
    with pytest.raises(ValueError, match="no receipts of OPPO"):
        read_oppo(body, OPPO)


@given(st.binary(max_size=300))
def test_any_bytes_are_receipts_or_a_value_error(body: bytes) -> None:
    for read, tags in ((read_xiaomi, XIAOMI), (read_oppo, OPPO)):
        with contextlib.suppress(ValueError):
            assert isinstance(read(body, tags), list)
