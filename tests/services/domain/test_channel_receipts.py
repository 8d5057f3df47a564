"""Receipts of vendors: which messages they are about, what they mean, and what shows that they are the vendor's."""

import base64
import hmac
import json
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_HMS, App, ChannelCredentials, ChannelSetting
from services.domain.channel_receipts.hms import STATUSES, is_signed, read_harmony, read_hms
from services.domain.channel_receipts.receipts import (
    KEY_SETTING,
    MAX_AGE_MS,
    MAX_RECEIPTS,
    SETTING,
    UNKNOWN_MARK,
    ChannelReceipt,
    ReceiptKind,
    ReceiptTags,
    is_receipt_token,
    read_setting,
)
from services.domain.master_key import KeyPurpose, Keys, MasterKey, derive
from services.errors import InputError, UnavailableError

OLD, NEW = (derive(bytes([number] * 32), KeyPurpose.SECRETS) for number in (1, 2))
TAGS = ReceiptTags("1", CHANNEL_HMS, MasterKey(bytes(32)))
NOW_MS = 1_800_000_000_000


def receipt(status: Any, tag: str | None = TAGS.tag(7), token: str = "a") -> dict[str, Any]:  # a phone
    tagged = {} if tag is None else {"biTag": tag}
    fields = {"appid": "1045", "token": token, "status": status, "timestamp": "1563105451261", "requestId": "1"}
    return {**fields, **tagged}


def read(*receipts: dict[str, Any]) -> list[ChannelReceipt]:
    return list(read_hms(json.dumps({"statuses": receipts}).encode(), TAGS))


@pytest.mark.parametrize("status", STATUSES)
def test_every_documented_status_of_huawei(status: int) -> None:
    kind, words = STATUSES[status]
    expected = [ChannelReceipt("a", 7, kind, f"{status} {words}")]
    assert read(receipt(status)) == read(receipt(str(status))) == expected


@pytest.mark.parametrize("status", STATUSES)
def test_every_documented_status_of_harmony(status: int) -> None:
    kind, words = STATUSES[status]
    told = {
        "token": "a", "biTag": TAGS.tag(7), "pushType": 0, "appPackageName": "org.example.weather", "requestId": "1",
        "deliveryStatus": {"result": status, "timestamp": 1_800_000_000_000},
    }  # fmt: skip
    body = json.dumps({"statuses": [told, {**told, "biTag": "carillon-7"}]}).encode()
    unknown = ChannelReceipt("a", 0, ReceiptKind.OTHER, UNKNOWN_MARK)
    assert read_harmony(body, TAGS) == [ChannelReceipt("a", 7, kind, f"{status} {words}"), unknown]


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"statuses":[{"token":"a"}]}', b"[" * 100_000])
def test_what_is_no_call_for_harmony(body: bytes) -> None:
    with pytest.raises(ValueError, match="no receipts of HarmonyOS"):
        read_harmony(body, TAGS)


def test_delivered_messages_and_dead_addresses() -> None:
    kinds = {status: kind for status, (kind, _) in STATUSES.items() if kind is not ReceiptKind.OTHER}
    dead = ReceiptKind.DEAD_ADDRESS
    assert kinds == {0: ReceiptKind.RECEIVED, 2: dead, 5: dead}


@pytest.mark.parametrize("status", [999, "x", -1, "0" * 500])
def test_a_status_that_is_not_documented_is_counted_alone(status: Any) -> None:
    assert read(receipt(status)) == [ChannelReceipt("a", 7, ReceiptKind.OTHER, "other")]


def test_receipts_of_other_senders_and_forged_ones_are_counted_alone() -> None:
    mark = TAGS.tag(7)
    mac = mark.removeprefix("carillon-7-")
    wrong = (
        None, "", "7", "carillon-7", "carillon-7-", f"carillon-8-{mac}", f"carillon-7-{mac[:-1]}", f"{mark}x",
        f"x{mark}", mark.swapcase(), f"carillon-7-{'A' * 22}", f"carillon-{'1' * 17}-{mac}", mark[:-1] + "é",
        ReceiptTags("2", CHANNEL_HMS, TAGS.keys).tag(7), ReceiptTags("1", CHANNEL_FCM, TAGS.keys).tag(7),
        ReceiptTags("1", CHANNEL_HMS, MasterKey(bytes(31) + b"x")).tag(7),
    )  # fmt: skip
    told = read(*(receipt(0, tag) for tag in wrong), receipt(0, TAGS.tag(9), "b"))
    assert told[:-1] == [ChannelReceipt("a", 0, ReceiptKind.OTHER, UNKNOWN_MARK)] * len(wrong)
    assert told[-1] == ChannelReceipt("b", 9, ReceiptKind.RECEIVED, "0 delivered")
    assert len(read(*(receipt(0) for _ in range(MAX_RECEIPTS + 5)))) == MAX_RECEIPTS


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"statuses":[{}]}', b'{"statuses":{}}', b"[" * 100_000])
def test_what_is_no_call_of_huawei(body: bytes) -> None:
    with pytest.raises(ValueError, match="no receipts of HMS"):
        read_hms(body, TAGS)


def test_a_mark_names_its_message() -> None:
    assert [TAGS.msgid(TAGS.tag(msgid)) for msgid in (1, 2**53 - 1)] == [1, 2**53 - 1]
    assert len(TAGS.tag(2**53)) <= 64


def test_a_mark_stays_one_while_keys_rotate() -> None:
    both = ReceiptTags("1", CHANNEL_HMS, Keys({KeyPurpose.SECRETS: [NEW, OLD]}))
    old, new = (ReceiptTags("1", CHANNEL_HMS, Keys({KeyPurpose.SECRETS: [key]})) for key in (OLD, NEW))
    assert both.tag(7) == new.tag(7) != old.tag(7)
    assert both.msgid(new.tag(7)) == both.msgid(old.tag(7)) == 7
    assert old.msgid(new.tag(7)) is None
    old.keys.switch(KeyPurpose.SECRETS, both.keys.fingerprint(KeyPurpose.SECRETS))
    with pytest.raises(UnavailableError):
        old.msgid(new.tag(7))


def signature(key: str, time_ms: int, user: str = "carillon") -> str:
    """Return the header as Huawei documents it."""
    value = hmac.digest(key.encode(), f"{time_ms}:nonce-1{user}".encode(), "sha256")
    return f"timestamp={time_ms}; nonce=:nonce-1; value={base64.b64encode(value).decode()}"


def test_a_call_is_signed_with_the_key_and_lately() -> None:
    assert is_signed(signature("key", NOW_MS), "key", NOW_MS)
    assert is_signed(signature("key", NOW_MS - MAX_AGE_MS), "key", NOW_MS)
    right = signature("key", NOW_MS)
    for wrong in (
        "", "x", right.removesuffix("="), right.replace("nonce-1", "nonce-2"), right * 500, f"{right}; value=x",
        right.replace("value=", "value=é"), right.replace(str(NOW_MS), str(NOW_MS + 1)),
        signature("kez", NOW_MS), signature("key", NOW_MS, "other"),
        signature("key", NOW_MS - MAX_AGE_MS - 1), signature("key", NOW_MS + MAX_AGE_MS + 1),
    ):  # fmt: skip
        assert not is_signed(wrong, "key", NOW_MS)


def test_the_setting_makes_a_token_and_a_key_and_removes_both() -> None:
    made = [read_setting("on", "at") for _ in range(3)]
    assert {each[KEY_SETTING] for each in made} == {""}
    token, *others = {each[SETTING] for each in made}
    assert len(others) == 2
    keys = {read_setting("signed", "at")[KEY_SETTING] for _ in range(3)}
    assert (len(keys), set(map(len, keys))) == (3, {32})
    assert read_setting(token, "at") == {SETTING: token}
    assert read_setting("off", "at") == read_setting(" ", "at") == {SETTING: "", KEY_SETTING: ""}
    for wrong in ("yes", "a" * 31, "a b" * 11):
        with pytest.raises(InputError, match="at must be on, signed or off"):
            read_setting(wrong, "at")


def test_the_token_is_that_of_the_app_on_the_channel() -> None:
    setting = ChannelSetting(name=SETTING, value="t" * 32)
    app = App(appkey="1", channels=[ChannelCredentials(channel=CHANNEL_HMS, settings=[setting])])
    assert is_receipt_token(app, CHANNEL_HMS, "t" * 32)
    assert not is_receipt_token(app, CHANNEL_HMS, "t" * 31)
    assert not is_receipt_token(app, CHANNEL_HMS, "é")
    assert not is_receipt_token(app, CHANNEL_FCM, "t" * 32)
    assert not is_receipt_token(App(appkey="1"), CHANNEL_HMS, "")
