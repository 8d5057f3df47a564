"""A message as a HarmonyOS request: what the phone shows by itself, the rest as data, shortened to what fits.

A notification bears its data for a click, which opens the app: it then does what the message says. A message for the
app alone reaches it while it runs, and is kept by Huawei until then.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from protos.push.v1.push_pb2 import ChannelOptions, Message
from services.delivery.channels.batches.display import NO_TEXT, notify_id
from services.delivery.channels.shortening import shortened
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.domain.channel_credentials.readers import DEFAULT_CATEGORY
from services.domain.device_protocol.pushes import PushFields, PushText, push_fields

MAX_BYTES = 4096
"""Huawei's limit of a request without its tokens."""

MAX_TTL_S = 15 * 86_400

DATA_KEY = "carillon"
"""The name of the only data field: a push frame as JSON."""

NOTIFICATION, BACKGROUND = "0", "6"
"""Values of the header push-type."""

_OPEN_APP = 0
_MAX_MSGID = 2**53


class _Struct(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Huawei's names are in camel case."""


class _ClickAction(_Struct, frozen=True, omit_defaults=False):
    action_type: int
    data: Mapping[str, str]


class _Badge(_Struct, frozen=True):
    set_num: int


class _Notification(_Struct, frozen=True):
    category: str
    title: str
    body: str
    click_action: _ClickAction
    notify_id: int
    foreground_show: bool
    badge: _Badge | UnsetType = UNSET


class _Payload(_Struct, frozen=True):
    notification: _Notification | UnsetType = UNSET
    extra_data: str | UnsetType = UNSET


class _PushOptions(_Struct, frozen=True):
    ttl: int
    bi_tag: str | UnsetType = UNSET
    test_message: bool = False


class _Target(_Struct, frozen=True):
    token: Sequence[str]


class _SendRequest(_Struct, frozen=True):
    payload: _Payload
    push_options: _PushOptions
    target: _Target


_encoder = msgspec.json.Encoder()


class HarmonyMessage:
    """The message of a push for all devices, with what an app's settings say, shortened until it fits with any id."""

    quota = ""

    def __init__(self, message: Message, expires_ms: int, options: ChannelOptions, account: HarmonyAccount) -> None:
        self._expires_ms = expires_ms
        self._category = account.category(options.category)
        self.daily_cap = account.limits.daily_cap if self._category == DEFAULT_CATEGORY else 0
        self._receipts = account.receipts
        self._fields = shortened(push_fields(message, expires_ms), self._fits)
        self._frame = PushText(_in_data(self._fields))
        self.headers: Mapping[str, str] = {"push-type": NOTIFICATION if message.is_notif else BACKGROUND}

    @property
    def shortened(self) -> tuple[str, ...]:
        """The names of the fields that were cut or left out."""
        return tuple(self._fields.shortened or ())

    def body(
        self, msgid: int, tokens: Sequence[str], now_ms: int, *, is_plain: bool = False, dry: bool = False
    ) -> bytes:
        """Return the body of `messages:send` for devices. Retries have the same id, so that a phone shows one.

        `is_plain` changes nothing, since messages have no importance there. `dry`: a test message, free of limits.
        """
        ttl_s = min(max((self._expires_ms - now_ms) // 1000, 1), MAX_TTL_S)
        return _encoder.encode(self._request(self._fields, self._frame, msgid, tokens, ttl_s, is_test=dry))

    def _fits(self, fields: PushFields) -> bool:
        longest = self._request(fields, PushText(_in_data(fields)), _MAX_MSGID, (), MAX_TTL_S, is_test=True)
        return len(_encoder.encode(longest)) <= MAX_BYTES

    def _request(
        self, fields: PushFields, frame: PushText, msgid: int, tokens: Sequence[str], ttl_s: int, *, is_test: bool
    ) -> _SendRequest:
        data = {DATA_KEY: frame.text(msgid).decode()}
        if not fields.is_notif:
            payload = _Payload(extra_data=_encoder.encode(data).decode())
        else:
            badge = fields.badge
            payload = _Payload(
                _Notification(
                    category=self._category,
                    title=fields.title or NO_TEXT,
                    body=fields.content or NO_TEXT,
                    click_action=_ClickAction(_OPEN_APP, data),
                    notify_id=notify_id(msgid),
                    foreground_show=False,
                    badge=_Badge(badge) if isinstance(badge, int) and 0 <= badge <= 99 else UNSET,
                )
            )
        tag = self._receipts.tag(msgid) if self._receipts else UNSET
        return _SendRequest(payload, _PushOptions(ttl_s, tag, is_test), _Target(tokens))


def _in_data(fields: PushFields) -> PushFields:
    """Return the fields without those that Huawei's notification has."""
    return replace(fields, title=UNSET, content="") if fields.is_notif else fields
