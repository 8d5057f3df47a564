"""A message as Honor's request: what the phone shows by itself, the rest as data, shortened to what fits."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from protos.push.v1.push_pb2 import IMPORTANCE_LOW, ChannelOptions, Message
from services.delivery.channels.batches.display import NO_TEXT, Opens, Tap, notify_id, tap_of
from services.delivery.channels.shortening import shortened
from services.domain.channel_credentials.honor import HonorCredentials
from services.domain.device_protocol.pushes import PushFields, PushText, push_fields

MAX_BYTES = 4096
"""Assumed limit of a request without its tokens, which is that of Huawei, whose service Honor's descends from."""

MAX_TTL_S = 15 * 86_400
DATA_KEY = "carillon"
"""The name of the only data field: a push frame as JSON."""

_MAX_MSGID = 2**53
_TEST = 1

Level = Literal["LOW", "NORMAL"]


class _Struct(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Honor's names are in camel case."""


class _ClickAction(_Struct, frozen=True):
    """`type`: 1 an intent, 2 a URL, 3 the app."""

    type: int
    intent: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class _Badge(_Struct, frozen=True):
    set_num: int
    badge_class: str


class _Notification(_Struct, frozen=True):
    title: str
    body: str
    click_action: _ClickAction
    importance: Level
    notify_id: int
    tag: str
    badge: _Badge | UnsetType = UNSET


class _AndroidConfig(_Struct, frozen=True):
    ttl: str
    target_user_type: int | UnsetType = UNSET
    notification: _Notification | UnsetType = UNSET


class _SendRequest(_Struct, frozen=True):
    data: str
    android: _AndroidConfig
    token: Sequence[str]


_encoder = msgspec.json.Encoder()


class HonorMessage:
    """The message of a push for all devices, with what an app's settings say, shortened until it fits with any id."""

    headers: Mapping[str, str] = {}
    quota = ""

    def __init__(
        self, message: Message, expires_ms: int, options: ChannelOptions, credentials: HonorCredentials
    ) -> None:
        self._expires_ms = expires_ms
        serves = options.category in credentials.categories and options.importance != IMPORTANCE_LOW
        self._importance: Level = "NORMAL" if serves else "LOW"
        self.daily_cap = 0 if serves else credentials.limits.daily_cap
        self._badge_class = credentials.badge_class
        self._fields = shortened(push_fields(message, expires_ms), self._fits)
        self._frame = PushText(_in_data(self._fields))

    def body(
        self, msgid: int, tokens: Sequence[str], now_ms: int, *, is_plain: bool = False, dry: bool = False
    ) -> bytes:
        """Return the body of `sendMessage`. Retries have the same id, so that a phone shows one.

        `is_plain` changes nothing. `dry`: a test message, of which an app has a thousand a day.
        """
        ttl_s = min(max((self._expires_ms - now_ms) // 1000, 1), MAX_TTL_S)
        return _encoder.encode(self._request(self._fields, self._frame, msgid, tokens, ttl_s, is_test=dry))

    def _fits(self, fields: PushFields) -> bool:
        longest = self._request(fields, PushText(_in_data(fields)), _MAX_MSGID, (), MAX_TTL_S, is_test=True)
        return len(_encoder.encode(longest)) <= MAX_BYTES

    def _request(
        self, fields: PushFields, frame: PushText, msgid: int, tokens: Sequence[str], ttl_s: int, *, is_test: bool
    ) -> _SendRequest:
        data = _encoder.encode({DATA_KEY: frame.text(msgid).decode()}).decode()
        notification: _Notification | UnsetType = UNSET
        if fields.is_notif:
            notification = _Notification(
                title=fields.title or NO_TEXT,
                body=fields.content or NO_TEXT,
                click_action=_click_action(fields),
                importance=self._importance,
                notify_id=notify_id(msgid),
                tag=f"carillon-{msgid}",
                badge=self._badge(fields),
            )
        return _SendRequest(data, _AndroidConfig(f"{ttl_s}s", _TEST if is_test else UNSET, notification), tokens)

    def _badge(self, fields: PushFields) -> _Badge | UnsetType:
        if not self._badge_class or not isinstance(fields.badge, int) or not 0 <= fields.badge <= 99:
            return UNSET
        return _Badge(fields.badge, self._badge_class)


def _click_action(fields: PushFields) -> _ClickAction:
    match tap_of(fields):
        case Tap(Opens.INTENT, intent):
            return _ClickAction(1, intent=intent)
        case Tap(Opens.URL, url):
            return _ClickAction(2, url=url)
        case _:
            return _ClickAction(3)


def _in_data(fields: PushFields) -> PushFields:
    """Return the fields without those that Honor's notification has."""
    return replace(fields, title=UNSET, content="") if fields.is_notif else fields
