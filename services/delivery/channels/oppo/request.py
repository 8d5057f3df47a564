"""A notification as OPPO's request: what the phone shows, cut to what it has space for, the whole as its parameters."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from protos.push.v1.push_pb2 import IMPORTANCE_HIGH, IMPORTANCE_LOW, ChannelOptions, Importance, Message
from services.delivery.channels.batches.display import Opens, cut, notify_id, tap_of
from services.delivery.channels.shortening import shortened
from services.domain.channel_credentials.oppo import OppoCredentials
from services.domain.channel_credentials.readers import DEFAULT_CATEGORY
from services.domain.device_protocol.pushes import PushFields, PushText, push_fields

MAX_TITLE, MAX_SHORT, MAX_LONG = 50, 50, 128
"""Characters of a title, and of a content of each style."""

MAX_URL = 2000
MAX_PARAMETERS = 4000
MAX_TTL_S = 10 * 86_400
DATA_KEY = "carillon"
"""The name of the only parameter: a push frame as JSON."""

_MAX_MSGID = 2**53
_ONE_PHONE = 2
_SHORT, _LONG = 1, 2
_CLICKS: Mapping[Opens, Literal[0, 2, 5]] = {Opens.APP: 0, Opens.URL: 2, Opens.INTENT: 5}
_IN_BAR, _ON_LOCK_SCREEN, _STRONG = 1, 2, 16


class _Struct(msgspec.Struct, frozen=True, omit_defaults=True):
    """OPPO's names are in snake case."""


class _Notification(_Struct, frozen=True):
    app_message_id: str
    style: int
    title: str
    content: str
    click_action_type: int
    action_parameters: str
    off_line: bool
    off_line_ttl: int
    notify_id: int
    click_action_url: str | UnsetType = UNSET
    channel_id: str | UnsetType = UNSET
    category: str | UnsetType = UNSET
    notify_level: int | UnsetType = UNSET
    call_back_url: str | UnsetType = UNSET
    call_back_parameter: str | UnsetType = UNSET


class _SendRequest(_Struct, frozen=True):
    target_type: int
    target_value: str
    notification: _Notification
    verify_registration_id: bool


_encoder = msgspec.json.Encoder()


class OppoMessage:
    """The message of a push for all devices, with what an app's settings say.

    Its parameters are a push frame as JSON, shortened until it fits with any id.
    """

    headers: Mapping[str, str] = {}

    def __init__(
        self, message: Message, expires_ms: int, options: ChannelOptions, credentials: OppoCredentials
    ) -> None:
        self._expires_ms = expires_ms
        self._callback = credentials.callback
        granted = options.category if options.category in credentials.categories else ""
        self.quota = granted or DEFAULT_CATEGORY
        self.daily_cap = credentials.limits.daily_cap if self.quota == DEFAULT_CATEGORY else 0
        self._category: str | UnsetType = granted or UNSET
        self._level: int | UnsetType = _level(options.importance) if granted else UNSET
        self._channel: str | UnsetType = credentials.channels.get(self.quota) or UNSET
        self._fields = shortened(push_fields(message, expires_ms), _fits)
        self._frame = PushText(self._fields)
        self._tap = tap_of(self._fields, schemes=("https://", "http://"), most=MAX_URL)

    def body(
        self, msgid: int, tokens: Sequence[str], now_ms: int, *, is_plain: bool = False, dry: bool = False
    ) -> bytes:
        """Return the JSON of a message for one phone. Retries have the same ids, of which OPPO sends and shows one.

        `is_plain`: without category and level, for which an app needs a right.
        """
        fields, callback = self._fields, self._callback
        style = _SHORT if len(fields.content) <= MAX_SHORT else _LONG
        notification = _Notification(
            app_message_id=f"carillon-{msgid}",
            style=style,
            title=cut(fields.title or "", MAX_TITLE),
            content=cut(fields.content, MAX_SHORT if style == _SHORT else MAX_LONG),
            click_action_type=_CLICKS[self._tap.opens],
            click_action_url=self._tap.param or UNSET,
            action_parameters=_parameters(self._frame, msgid),
            off_line=True,
            off_line_ttl=min(max((self._expires_ms - now_ms) // 1000, 1), MAX_TTL_S),
            notify_id=notify_id(msgid),
            channel_id=self._channel,
            category=UNSET if is_plain else self._category,
            notify_level=UNSET if is_plain else self._level,
            call_back_url=callback.url if callback else UNSET,
            call_back_parameter=callback.tags.tag(msgid) if callback else UNSET,
        )
        (token,) = tokens
        return _encoder.encode(_SendRequest(_ONE_PHONE, token, notification, True))


def _level(importance: "Importance.ValueType") -> int:
    if importance == IMPORTANCE_LOW:
        return _IN_BAR
    return _STRONG if importance == IMPORTANCE_HIGH else _ON_LOCK_SCREEN


def _parameters(frame: PushText, msgid: int) -> str:
    return _encoder.encode({DATA_KEY: frame.text(msgid).decode()}).decode()


def _fits(fields: PushFields) -> bool:
    return len(_parameters(PushText(fields), _MAX_MSGID)) <= MAX_PARAMETERS
