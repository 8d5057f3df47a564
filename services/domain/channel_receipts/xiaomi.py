"""Receipts of Xiaomi's push service: a form whose field `data` has JSON, by Xiaomi's ids of messages."""

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

import msgspec

from services.domain.channel_receipts.receipts import (
    MAX_RECEIPTS,
    ChannelReceipt,
    ReceiptKind,
    ReceiptTags,
    VendorReceipts,
    of_devices,
)

DELIVERED, CLICKED, INVALID, DISABLED, FILTERED, DAY_QUOTA = 1, 2, 16, 32, 64, 128

TYPES: Mapping[int, tuple[ReceiptKind, str]] = {
    DELIVERED: (ReceiptKind.RECEIVED, "delivered"),
    CLICKED: (ReceiptKind.OTHER, "clicked"),
    INVALID: (ReceiptKind.DEAD_ADDRESS, "invalid id"),
    DISABLED: (ReceiptKind.OTHER, "push disabled"),
    FILTERED: (ReceiptKind.OTHER, "filtered"),
    DAY_QUOTA: (ReceiptKind.OTHER, "daily limit"),
}
"""The kinds of receipts. A message asks for those whose sum it names; a receipt is of one, any other is counted alone.

That an id has the type 16 and a quota 128 is documented; the others are those of Xiaomi's published examples.
"""

ASKED = sum(TYPES)


class _Receipt(msgspec.Struct):
    targets: str
    type: int
    param: str = ""


_bodies = msgspec.json.Decoder(dict[str, _Receipt])


def read_xiaomi(body: bytes, tags: ReceiptTags) -> Sequence[ChannelReceipt]:
    """Read the body of Xiaomi's call. ValueError: it is none."""
    try:
        (data,) = parse_qs(body.decode(), strict_parsing=True, max_num_fields=8)["data"]
        messages = _bodies.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, KeyError):
        raise ValueError("no receipts of Xiaomi") from None
    receipts: list[ChannelReceipt] = []
    for each in [*messages.values()][:MAX_RECEIPTS]:
        kind, words = TYPES.get(each.type, (ReceiptKind.OTHER, ""))
        reason = f"{each.type} {words}" if words else "other"
        receipts += of_devices(each.targets, tags.msgid(each.param), kind, reason)
    return receipts[:MAX_RECEIPTS]


XIAOMI_RECEIPTS = VendorReceipts(read_xiaomi)
