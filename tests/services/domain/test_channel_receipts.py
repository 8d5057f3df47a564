"""Receipts of vendors: which messages they are about, what they mean, and the token of the URL for them."""

import json
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_HMS, App, ChannelCredentials, ChannelSetting
from services.domain.channel_receipts.hms import STATUSES, read_hms
from services.domain.channel_receipts.receipts import (
    MAX_RECEIPTS,
    SETTING,
    Receipt,
    ReceiptKind,
    is_receipt_token,
    read_setting,
    receipt_tag,
    tagged_msgid,
)
from services.errors import InputError


def receipt(status: Any, tag: str | None = "carillon-7", token: str = "a") -> dict[str, Any]:  # a phone
    tagged = {} if tag is None else {"biTag": tag}
    fields = {"appid": "1045", "token": token, "status": status, "timestamp": "1563105451261", "requestId": "1"}
    return {**fields, **tagged}


def read(*receipts: dict[str, Any]) -> list[Receipt]:
    return list(read_hms(json.dumps({"statuses": receipts}).encode()))


@pytest.mark.parametrize("status", STATUSES)
def test_every_documented_status_of_huawei(status: int) -> None:
    kind, words = STATUSES[status]
    expected = [Receipt("a", 7, kind, f"{status} {words}")]
    assert read(receipt(status)) == read(receipt(str(status))) == expected


def test_delivered_messages_and_dead_addresses() -> None:
    kinds = {status: kind for status, (kind, _) in STATUSES.items() if kind is not ReceiptKind.OTHER}
    dead = ReceiptKind.DEAD_ADDRESS
    assert kinds == {0: ReceiptKind.RECEIVED, 2: dead, 5: dead}


@pytest.mark.parametrize("status", [999, "x", -1, "0" * 500])
def test_a_status_that_is_not_documented_is_counted_alone(status: Any) -> None:
    assert read(receipt(status)) == [Receipt("a", 7, ReceiptKind.OTHER, "other")]


def test_receipts_of_other_senders_are_left_out() -> None:
    other = [
        receipt(0, tag) for tag in (None, "", "7", "carillon-", "carillon-x", "carillon-1-2", "carillon-" + "1" * 17)
    ]
    assert read(*other, receipt(0, "carillon-9", "b")) == [Receipt("b", 9, ReceiptKind.RECEIVED, "0 delivered")]
    assert len(read(*(receipt(0) for _ in range(MAX_RECEIPTS + 5)))) == MAX_RECEIPTS


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"statuses":[{}]}', b'{"statuses":{}}', b"[" * 100_000])
def test_what_is_no_call_of_huawei(body: bytes) -> None:
    with pytest.raises(ValueError, match="no receipts of HMS"):
        read_hms(body)


def test_a_tag_names_its_message() -> None:
    assert [tagged_msgid(receipt_tag(msgid)) for msgid in (1, 2**53 - 1)] == [1, 2**53 - 1]
    assert len(receipt_tag(2**53 - 1)) <= 64


def test_the_setting_makes_a_token_and_removes_it() -> None:
    made = {read_setting("on", "at")[SETTING] for _ in range(3)}
    assert len(made) == 3
    token = made.pop()
    assert read_setting(token, "at") == {SETTING: token}
    assert read_setting("off", "at") == read_setting(" ", "at") == {SETTING: ""}
    for wrong in ("yes", "a" * 31, "a b" * 11):
        with pytest.raises(InputError, match="at must be on or off"):
            read_setting(wrong, "at")


def test_the_token_is_that_of_the_app_on_the_channel() -> None:
    setting = ChannelSetting(name=SETTING, value="t" * 32)
    app = App(appkey="1", channels=[ChannelCredentials(channel=CHANNEL_HMS, settings=[setting])])
    assert is_receipt_token(app, CHANNEL_HMS, "t" * 32)
    assert not is_receipt_token(app, CHANNEL_HMS, "t" * 31)
    assert not is_receipt_token(app, CHANNEL_HMS, "é")
    assert not is_receipt_token(app, CHANNEL_FCM, "t" * 32)
    assert not is_receipt_token(App(appkey="1"), CHANNEL_HMS, "")
