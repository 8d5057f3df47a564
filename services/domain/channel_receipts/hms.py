"""Receipts of Huawei's Push Kit (HMS)."""

from collections.abc import Mapping, Sequence

import msgspec

from services.domain.channel_receipts.receipts import (
    MAX_RECEIPTS,
    Receipt,
    ReceiptKind,
    VendorReceipts,
    tagged_msgid,
)

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
}
"""Documented statuses. Any other is counted alone."""


class _Status(msgspec.Struct):
    token: str
    status: int | str
    biTag: str = ""  # Huawei's name


class _Body(msgspec.Struct):
    statuses: list[_Status]


_bodies = msgspec.json.Decoder(_Body)


def read_hms(body: bytes) -> Sequence[Receipt]:
    """Read the body of Huawei's call. ValueError: it is none."""
    try:
        statuses = _bodies.decode(body).statuses
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("no receipts of HMS") from None
    tagged = ((each, tagged_msgid(each.biTag)) for each in statuses[:MAX_RECEIPTS])
    return [_receipt(each, msgid) for each, msgid in tagged if msgid is not None]


def _receipt(status: _Status, msgid: int) -> Receipt:
    text = str(status.status)
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else -1
    kind, words = STATUSES.get(number, (ReceiptKind.OTHER, ""))
    return Receipt(status.token, msgid, kind, f"{number} {words}" if words else "other")


HMS_RECEIPTS = VendorReceipts(read_hms, b'{"errno":"0","errmsg":"ok"}')
