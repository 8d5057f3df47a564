"""What a receipt says. The URL that a vendor is given ends in a token of the app.

The form of a channel's credentials names its vendor's receipts.
A message bears a mark (`ReceiptTags`), which the vendor returns; the device is named by its address, so that a request
for many devices may bear one mark.
"""

import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from protos.registry.v1.apps_pb2 import App, Channel
from services.domain.addresses import channel_name
from services.domain.channel_credentials.stored import settings_of
from services.domain.master_key import KeyPurpose, Keys
from services.errors import InputError

MAX_BODY_BYTES = 256 * 1024
MAX_RECEIPTS = 1_000
"""Receipts of a call that are read; no vendor documents more."""

SETTING = "receipts"
"""The setting of an app's credentials with the token of its URL; an app without it has no receipts."""

KEY_SETTING = "receipts_key"
"""The setting with the key by which the vendor signs its calls; unsigned ones are accepted without it."""

MAX_AGE_MS = 10 * 60_000
"""How far the time of a signed call may be from ours."""

UNKNOWN_MARK = "unknown mark"
"""The reason of receipts of other senders, and of forged ones: they are counted alone."""

ON, SIGNED, OFF = "on", "signed", "off"
_TAG = re.compile(r"carillon-([0-9]{1,16})-([A-Za-z0-9_-]{22})")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,64}")


class ReceiptKind(Enum):
    """What a receipt means for the device."""

    RECEIVED = "received"
    DEAD_ADDRESS = "dead address"
    OTHER = "other"
    """It is counted alone: the phone has not shown the message, or may later."""


class ChannelReceipt(NamedTuple):
    """A receipt of one message on one device. `reason`: the vendor's code and its meaning, for people and metrics."""

    address: str
    msgid: int
    kind: ReceiptKind
    reason: str


@dataclass(frozen=True, slots=True)
class ReceiptTags:
    """The marks of an app's messages on one channel. Each has a MAC, so that others can make none."""

    appkey: str
    channel: "Channel.ValueType"
    keys: Keys = field(repr=False)

    def tag(self, msgid: int) -> str:
        """Return the mark of a message."""
        return f"carillon-{msgid}-{self._macs(msgid)[0]}"

    def msgid(self, tag: str) -> int | None:
        """Return the message id of a mark; None for one that is not the app's.

        UnavailableError: this process lacks a key by which it may have been made.
        """
        found = _TAG.fullmatch(tag)
        if found is None:
            return None
        msgid = int(found[1])
        if any(hmac.compare_digest(found[2], mac) for mac in self._macs(msgid)):
            return msgid
        self.keys.check(KeyPurpose.SECRETS)
        return None

    def _macs(self, msgid: int) -> Sequence[str]:
        macs = self.keys.receipt_macs(f"{self.channel}/{self.appkey}/{msgid}")
        return [urlsafe_b64encode(mac).decode().rstrip("=") for mac in macs]


class Callback(NamedTuple):
    """Where a vendor that is told so with each message sends receipts, and the marks of messages."""

    url: str
    tags: ReceiptTags


def callback_of(app: App, channel: "Channel.ValueType", base: str, keys: Keys) -> Callback | None:
    """Return where receipts of the app go, under the address `base` of this service; None: it asks for none."""
    token = settings_of(app, channel).get(SETTING)
    if not base or not token:
        return None
    return Callback(
        f"{base}/channels/v1/receipt/{channel_name(channel)}/{app.appkey}/{token}",
        ReceiptTags(app.appkey, channel, keys),
    )


def _unsigned(header: str, key: str, now_ms: int) -> bool:
    return False


class VendorReceipts(NamedTuple):
    """How a vendor sends receipts.

    `read` returns the receipts of a call's body. ValueError: it is no call of the vendor's; UnavailableError as for
    ReceiptTags.msgid. `header`: the name of that with the call's signature. `is_signed`: whether such a header was made
    with a key, about the present time in ms. `answer`: the body by which the vendor knows that its receipts are had.
    """

    read: Callable[[bytes, ReceiptTags], Sequence[ChannelReceipt]]
    header: str = ""
    is_signed: Callable[[str, str, int], bool] = _unsigned
    answer: bytes = b""


def of_devices(addresses: str, msgid: int | None, kind: ReceiptKind, reason: str) -> list[ChannelReceipt]:
    """Return the receipts of a message on the devices of a list with commas. `msgid`: None for an unknown mark."""
    if msgid is None:
        msgid, kind, reason = 0, ReceiptKind.OTHER, UNKNOWN_MARK
    each = addresses.split(",", MAX_RECEIPTS)[:MAX_RECEIPTS]
    return [ChannelReceipt(address, msgid, kind, reason) for address in each]


def read_setting(value: str, at: str) -> Mapping[str, str]:
    """Return the settings for what people write. InputError.

    on makes a new token, signed a new token and a key, off ends receipts; the present token changes nothing.
    """
    given = value.strip()
    if given in (ON, SIGNED):
        return {SETTING: secrets.token_urlsafe(24), KEY_SETTING: secrets.token_hex(16) if given == SIGNED else ""}
    if given in ("", OFF):
        return {SETTING: "", KEY_SETTING: ""}
    if not _TOKEN.fullmatch(given):
        raise InputError(f"{at} must be {ON}, {SIGNED} or {OFF}")
    return {SETTING: given}


def is_receipt_token(app: App, channel: "Channel.ValueType", token: str) -> bool:
    """Whether the token is that of the app's URL."""
    own = settings_of(app, channel).get(SETTING, "")
    return bool(own) and hmac.compare_digest(own.encode(), token.encode())
