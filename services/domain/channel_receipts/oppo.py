"""Receipts of OPPO's push service: a list of JSON objects, each about some devices of one message."""

from collections.abc import Mapping, Sequence

import msgspec

from services.domain.channel_receipts.receipts import (
    MAX_RECEIPTS,
    ChannelReceipt,
    ReceiptKind,
    ReceiptTags,
    VendorReceipts,
    of_devices,
)

EVENTS: Mapping[str, tuple[ReceiptKind, str]] = {
    "push_arrive": (ReceiptKind.RECEIVED, "delivered"),
    "regid_invalid": (ReceiptKind.DEAD_ADDRESS, "invalid id"),
    "user_daily_limit": (ReceiptKind.OTHER, "daily limit"),
}
"""Documented kinds of receipts. Any other is counted alone. `push_arrive`: the phone has it, shown or not."""


class _Receipt(msgspec.Struct, rename="camel"):
    registration_ids: str
    event_type: str
    param: str = ""


_bodies = msgspec.json.Decoder(list[_Receipt])


def read_oppo(body: bytes, tags: ReceiptTags) -> Sequence[ChannelReceipt]:
    """Read the body of OPPO's call. ValueError: it is none."""
    try:
        found = _bodies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("no receipts of OPPO") from None
    receipts: list[ChannelReceipt] = []
    for each in found[:MAX_RECEIPTS]:
        kind, words = EVENTS.get(each.event_type, (ReceiptKind.OTHER, ""))
        reason = f"{each.event_type} {words}" if words else "other"
        receipts += of_devices(each.registration_ids, tags.msgid(each.param), kind, reason)
    return receipts[:MAX_RECEIPTS]


OPPO_RECEIPTS = VendorReceipts(read_oppo)
