"""Receipts of Huawei's Push Kit, of both generations: HMS and HarmonyOS."""

import functools
import hmac
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence

import msgspec

from services.domain.channel_receipts.receipts import (
    MAX_AGE_MS,
    MAX_RECEIPTS,
    UNKNOWN_MARK,
    ChannelReceipt,
    ReceiptKind,
    ReceiptTags,
    VendorReceipts,
)

CALLBACK_USER = "carillon"
"""The user name that Huawei signs its calls with."""

STATUSES: Mapping[int, tuple[ReceiptKind, str]] = {
    0: (ReceiptKind.RECEIVED, "delivered"),
    2: (ReceiptKind.DEAD_ADDRESS, "app not installed"),
    5: (ReceiptKind.DEAD_ADDRESS, "token not on the device"),
    6: (ReceiptKind.OTHER, "notifications off"),
    10: (ReceiptKind.OTHER, "device not seen for 30 days"),
    14: (ReceiptKind.OTHER, "fault"),
    15: (ReceiptKind.OTHER, "replaced in storage"),
    22: (ReceiptKind.OTHER, "another user"),
    27: (ReceiptKind.OTHER, "cached"),
    31: (ReceiptKind.OTHER, "unsupported"),
    51: (ReceiptKind.OTHER, "device locked"),
    102: (ReceiptKind.OTHER, "daily limit"),
    144: (ReceiptKind.OTHER, "another profile"),
    201: (ReceiptKind.OTHER, "held back"),
    256: (ReceiptKind.OTHER, "daily limit of its kind"),
}
"""Documented statuses, 256 of HarmonyOS alone. Any other is counted alone."""


class _Status(msgspec.Struct):
    token: str
    status: int | str
    biTag: str = ""  # Huawei's name


class _Body(msgspec.Struct):
    statuses: list[_Status]


class _DeliveryStatus(msgspec.Struct):
    result: int | str


class _HarmonyStatus(msgspec.Struct):
    token: str
    deliveryStatus: _DeliveryStatus  # Huawei's name
    biTag: str = ""


class _HarmonyBody(msgspec.Struct):
    statuses: list[_HarmonyStatus]


_bodies = msgspec.json.Decoder(_Body)
_harmony_bodies = msgspec.json.Decoder(_HarmonyBody)


def read_hms(body: bytes, tags: ReceiptTags) -> Sequence[ChannelReceipt]:
    """Read the body of Huawei's call. ValueError: it is none."""
    try:
        statuses = _bodies.decode(body).statuses
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("no receipts of HMS") from None
    msgid = functools.cache(tags.msgid)  # most receipts of a call are about one message
    return [_receipt(each.token, msgid(each.biTag), each.status) for each in statuses[:MAX_RECEIPTS]]


def read_harmony(body: bytes, tags: ReceiptTags) -> Sequence[ChannelReceipt]:
    """Read the body of Huawei's call for HarmonyOS. ValueError: it is none."""
    try:
        statuses = _harmony_bodies.decode(body).statuses
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("no receipts of HarmonyOS") from None
    msgid = functools.cache(tags.msgid)
    return [_receipt(each.token, msgid(each.biTag), each.deliveryStatus.result) for each in statuses[:MAX_RECEIPTS]]


def _receipt(token: str, msgid: int | None, status: int | str) -> ChannelReceipt:
    if msgid is None:
        return ChannelReceipt(token, 0, ReceiptKind.OTHER, UNKNOWN_MARK)
    text = str(status)
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else -1
    kind, words = STATUSES.get(number, (ReceiptKind.OTHER, ""))
    return ChannelReceipt(token, msgid, kind, f"{number} {words}" if words else "other")


_CALLBACK_ID = re.compile(r"timestamp=([0-9]{1,16}); *nonce=([!-:<-~]{1,200}); *value=([A-Za-z0-9+/=]{1,100})")


def is_signed(callback_id: str, key: str, now_ms: int) -> bool:
    """Whether the header X-HUAWEI-CALLBACK-ID was made with the key, some minutes ago at most."""
    found = _CALLBACK_ID.fullmatch(callback_id)
    if found is None or abs(now_ms - int(found[1])) > MAX_AGE_MS:
        return False
    timestamp, nonce, value = found.groups()
    signed = hmac.digest(key.encode(), f"{timestamp}{nonce}{CALLBACK_USER}".encode(), "sha256")
    return hmac.compare_digest(b64encode(signed), value.encode())


_HEADER, _ANSWER = "X-HUAWEI-CALLBACK-ID", b'{"errno":"0","errmsg":"ok"}'

HMS_RECEIPTS = VendorReceipts(read_hms, _HEADER, is_signed, _ANSWER)
HARMONY_RECEIPTS = VendorReceipts(read_harmony, _HEADER, is_signed, _ANSWER)
