"""A message as an FCM request (HTTP v1): what the phone shows by itself, the rest as data, shortened to what fits."""

from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from protos.push.v1.push_pb2 import Message
from services.delivery.channels.shortening import shortened
from services.domain.device_protocol.pushes import PushFields, PushText, push_fields

MAX_PAYLOAD_BYTES = 4096
"""Google's limit of notification and data together."""

MAX_TTL_S = 28 * 86_400

DATA_KEY = "carillon"
"""The name of the only data field: a push frame as JSON. Google reserves other names (`from`, `google.…`)."""

_INTENT = 3
_FIRST_RICH = 4
_ID_DIGITS = len(str(2**53))


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Google's names are in camel case."""


class _Notification(_Struct, frozen=True):
    title: str | UnsetType = UNSET
    body: str | UnsetType = UNSET


class _AndroidNotification(_Struct, frozen=True):
    tag: str
    sound: str | UnsetType = UNSET
    default_vibrate_timings: bool | UnsetType = UNSET
    click_action: str | UnsetType = UNSET
    notification_count: int | UnsetType = UNSET


class _AndroidConfig(_Struct, frozen=True):
    ttl: str
    priority: Literal["NORMAL", "HIGH"]
    notification: _AndroidNotification | UnsetType = UNSET


class _Message(_Struct, frozen=True):
    android: _AndroidConfig
    data: dict[str, str]
    token: str | UnsetType = UNSET
    fid: str | UnsetType = UNSET
    notification: _Notification | UnsetType = UNSET


class _SendRequest(_Struct, frozen=True):
    message: _Message
    validate_only: bool = False


_encoder = msgspec.json.Encoder()


class FcmContent(NamedTuple):
    """A message for all devices, shortened. `by_system`: the phone shows it without the app's help.

    `frame`: the push frame in the data; without title and content where the system has them.
    """

    fields: PushFields
    frame: PushText
    by_system: bool

    @property
    def shortened(self) -> tuple[str, ...]:
        """The names of the fields that were cut or left out."""
        return tuple(self.fields.shortened or ())


def fcm_content(message: Message, expires_ms: int) -> FcmContent:
    """Return the message, shortened until it fits with any message id.

    A notification that opens rich content is given to the app whole: only the SDK can show it.
    """
    by_system = message.is_notif and message.android.click_action < _FIRST_RICH

    def fits(fields: PushFields) -> bool:
        return _payload_bytes(fields, by_system=by_system) <= MAX_PAYLOAD_BYTES

    fields = shortened(push_fields(message, expires_ms), fits)
    return FcmContent(fields, PushText(_in_data(fields, by_system=by_system)), by_system)


class FcmTarget(NamedTuple):
    """Where a message goes. `is_fid`: a Firebase installation id, and no registration token."""

    address: str
    is_fid: bool = False


def fcm_request(
    content: FcmContent, target: FcmTarget, msgid: int, expires_ms: int, now_ms: int, *, dry: bool = False
) -> bytes:
    """Return the body of `messages:send` for one device. Retries have the same tag, so that the phone shows one.

    `dry`: Google only validates it.
    """
    fields = content.fields
    ttl_s = min(max(expires_ms - now_ms, 0) // 1000, MAX_TTL_S)
    notification = _android_notification(fields, f"carillon-{msgid}") if content.by_system else UNSET
    message = _Message(
        android=_AndroidConfig(f"{ttl_s}s", "HIGH" if fields.is_notif else "NORMAL", notification),
        data={DATA_KEY: content.frame.text(msgid).decode()},
        token=UNSET if target.is_fid else target.address,
        fid=target.address if target.is_fid else UNSET,
        notification=_Notification(fields.title, fields.content) if content.by_system else UNSET,
    )
    return _encoder.encode(_SendRequest(message, dry))


def _android_notification(fields: PushFields, tag: str) -> _AndroidNotification:
    badge = fields.badge if isinstance(fields.badge, int) and fields.badge >= 0 else UNSET
    return _AndroidNotification(
        tag=tag,
        sound="default" if fields.sound is True else UNSET,
        default_vibrate_timings=True if fields.vibrate is True else UNSET,
        click_action=_intent(fields),
        notification_count=badge,
    )


def _intent(fields: PushFields) -> str | UnsetType:
    """Return the intent that a click opens, if it opens one."""
    click = fields.click
    if click is UNSET or click.action != _INTENT or click.param is UNSET:
        return UNSET
    intent = msgspec.json.decode(click.param)
    return intent if isinstance(intent, str) else UNSET


def _in_data(fields: PushFields, *, by_system: bool) -> PushFields:
    return replace(fields, title=UNSET, content="") if by_system else fields


def _payload_bytes(fields: PushFields, *, by_system: bool) -> int:
    """Return the bytes of notification and data with the longest message id, as JSON: Google counts no more."""
    data = {DATA_KEY: PushText(_in_data(fields, by_system=by_system)).text(0).decode()}
    shown = _encoder.encode(_Notification(fields.title, fields.content)) if by_system else b""
    return len(_encoder.encode(data)) + len(shown) + _ID_DIGITS
