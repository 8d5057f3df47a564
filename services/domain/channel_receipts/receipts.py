"""What a receipt says, and which channels have any. The URL that a vendor is given ends in a token of the app.

A message bears `receipt_tag`, which the vendor returns; the device is named by its address, so that a request for many
devices may bear one tag.
"""

import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import App, Channel
from services.domain.channel_credentials.stored import settings_of
from services.errors import InputError

MAX_BODY_BYTES = 256 * 1024
MAX_RECEIPTS = 1_000
"""Receipts of a call that are read; no vendor documents more."""

SETTING = "receipts"
"""The setting of an app's credentials with the token of its URL; an app without it has no receipts."""

ON, OFF = "on", "off"
_TAG = re.compile(r"carillon-([0-9]{1,16})")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,64}")


class ReceiptKind(Enum):
    """What a receipt means for the device."""

    RECEIVED = "received"
    DEAD_ADDRESS = "dead address"
    OTHER = "other"
    """It is counted alone: the phone has not shown the message, or may later."""


class Receipt(NamedTuple):
    """A receipt of one message on one device. `reason`: the vendor's code and its meaning, for people and metrics."""

    address: str
    msgid: int
    kind: ReceiptKind
    reason: str


ReadReceipts = Callable[[bytes], Sequence[Receipt]]
"""Reads the body of a vendor's call; receipts of other senders are left out. ValueError: it is none of the vendor's."""


class VendorReceipts(NamedTuple):
    """How a vendor sends receipts. `answer`: the body by which it knows that they are had."""

    read: ReadReceipts
    answer: bytes


def receipt_tag(msgid: int) -> str:
    """Return the mark of a message that its receipts return."""
    return f"carillon-{msgid}"


def tagged_msgid(tag: str) -> int | None:
    """Return the message id of a mark; None for one of another sender."""
    found = _TAG.fullmatch(tag)
    return int(found[1]) if found else None


def read_setting(value: str, at: str) -> Mapping[str, str]:
    """Return the setting for what people write: on makes a new token, off ends receipts. InputError."""
    given = value.strip()
    if given == ON:
        return {SETTING: secrets.token_urlsafe(24)}
    if given not in ("", OFF) and not _TOKEN.fullmatch(given):
        raise InputError(f"{at} must be {ON} or {OFF}")
    return {SETTING: "" if given == OFF else given}


def is_receipt_token(app: App, channel: "Channel.ValueType", token: str) -> bool:
    """Whether the token is that of the app's URL."""
    own = settings_of(app, channel).get(SETTING, "")
    return bool(own) and hmac.compare_digest(own.encode(), token.encode())
