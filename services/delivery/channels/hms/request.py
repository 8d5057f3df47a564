"""A message as an HMS request: what the phone shows by itself, the rest as data, shortened to what fits.

Huawei shows notifications while the app is dead, and hands it data only while it runs; so every notification is one of
Huawei's, also where a click opens what the app has to show.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from protos.push.v1.push_pb2 import IMPORTANCE_HIGH, IMPORTANCE_LOW, ChannelOptions, Message
from services.delivery.channels.batches.display import NO_TEXT, Opens, Tap, tap_of
from services.delivery.channels.shortening import shortened
from services.domain.channel_credentials.hms import HmsCredentials
from services.domain.channel_credentials.readers import DEFAULT_CATEGORY
from services.domain.device_protocol.pushes import PushFields, PushText, push_fields

MAX_BYTES = 4096
"""Huawei's limit of a request without its tokens."""

MAX_TTL_S = 15 * 86_400

DATA_KEY = "carillon"
"""The name of the only data field: a push frame as JSON."""

_MAX_MSGID = 2**53

Level = Literal["LOW", "NORMAL", "HIGH"]


class _Struct(msgspec.Struct, frozen=True, omit_defaults=True):
    """Huawei's names are in snake case."""


class _ClickAction(_Struct, frozen=True):
    """`type`: 1 an intent, 2 a URL, 3 the app."""

    type: int
    intent: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class _Badge(_Struct, frozen=True):
    set_num: int
    class_: str = msgspec.field(name="class")


class _Notification(_Struct, frozen=True):
    title: str
    body: str
    click_action: _ClickAction
    tag: str
    importance: Level
    foreground_show: bool
    badge: _Badge | UnsetType = UNSET


class _AndroidConfig(_Struct, frozen=True):
    ttl: str
    category: str | UnsetType = UNSET
    bi_tag: str | UnsetType = UNSET
    urgency: Level | UnsetType = UNSET
    notification: _Notification | UnsetType = UNSET


class _Message(_Struct, frozen=True):
    data: str
    android: _AndroidConfig
    token: Sequence[str]


class _SendRequest(_Struct, frozen=True):
    message: _Message
    validate_only: bool = False


_encoder = msgspec.json.Encoder()


class HmsMessage:
    """The message of a push for all devices, with what an app's settings say, shortened until it fits with any id."""

    headers: Mapping[str, str] = {}
    quota = ""

    def __init__(self, message: Message, expires_ms: int, options: ChannelOptions, credentials: HmsCredentials) -> None:
        self._expires_ms = expires_ms
        self._options = options
        self._category = credentials.category(options.category)
        self.daily_cap = credentials.limits.daily_cap if self._category == DEFAULT_CATEGORY else 0
        self._badge_class = credentials.badge_class
        self._receipts = credentials.receipts
        self._fields = shortened(push_fields(message, expires_ms), self._fits)
        self._frame = PushText(_in_data(self._fields))

    @property
    def shortened(self) -> tuple[str, ...]:
        """The names of the fields that were cut or left out."""
        return tuple(self._fields.shortened or ())

    def body(
        self, msgid: int, tokens: Sequence[str], now_ms: int, *, is_plain: bool = False, dry: bool = False
    ) -> bytes:
        """Return the body of `messages:send` for devices. Retries have the same tag, so that a phone shows one.

        `is_plain`: without the importance for which an app needs a right. `dry`: Huawei only validates it.
        """
        ttl_s = min(max((self._expires_ms - now_ms) // 1000, 1), MAX_TTL_S)
        request = self._request(self._fields, self._frame, msgid, ttl_s, is_plain=is_plain)
        message = replace(request, token=tokens)
        return _encoder.encode(_SendRequest(message, dry))

    def _fits(self, fields: PushFields) -> bool:
        longest = self._request(fields, PushText(_in_data(fields)), _MAX_MSGID, MAX_TTL_S, is_plain=False)
        return len(_encoder.encode(_SendRequest(longest))) <= MAX_BYTES

    def _request(self, fields: PushFields, frame: PushText, msgid: int, ttl_s: int, *, is_plain: bool) -> _Message:
        data = _encoder.encode({DATA_KEY: frame.text(msgid).decode()}).decode()
        level = _level(self._options, is_plain=is_plain)
        tag = self._receipts.tag(msgid) if self._receipts else UNSET
        if not fields.is_notif:
            android = _AndroidConfig(f"{ttl_s}s", bi_tag=tag, urgency="HIGH" if level == "HIGH" else "NORMAL")
        else:
            notification = _Notification(
                title=fields.title or NO_TEXT,
                body=fields.content or NO_TEXT,
                click_action=_click_action(fields),
                tag=f"carillon-{msgid}",
                importance=level,
                foreground_show=False,
                badge=self._badge(fields),
            )
            android = _AndroidConfig(f"{ttl_s}s", self._category, tag, notification=notification)
        return _Message(data, android, ())

    def _badge(self, fields: PushFields) -> _Badge | UnsetType:
        if not self._badge_class or not isinstance(fields.badge, int) or not 0 <= fields.badge <= 99:
            return UNSET
        return _Badge(fields.badge, self._badge_class)


def _level(options: ChannelOptions, *, is_plain: bool) -> Level:
    if options.importance == IMPORTANCE_LOW:
        return "LOW"
    return "HIGH" if options.importance == IMPORTANCE_HIGH and not is_plain else "NORMAL"


def _click_action(fields: PushFields) -> _ClickAction:
    match tap_of(fields):
        case Tap(Opens.INTENT, intent):
            return _ClickAction(1, intent=intent)
        case Tap(Opens.URL, url):
            return _ClickAction(2, url=url)
        case _:
            return _ClickAction(3)


def _in_data(fields: PushFields) -> PushFields:
    """Return the fields without those that Huawei's notification has."""
    return replace(fields, title=UNSET, content="") if fields.is_notif else fields
