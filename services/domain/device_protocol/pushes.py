"""The frame of a push: the JSON of a message, the same over a device's connection and over Web Push."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.process.logs import logger

_START = b'{"type":"push","msgid":'


class PushClick(msgspec.Struct, frozen=True):
    action: int
    param: Raw | UnsetType = UNSET


class PushFields(msgspec.Struct, frozen=True):
    """The fields of a push frame without `type` and `msgid`, which are spliced into its JSON."""

    is_notif: int
    content: str
    title: str | UnsetType = UNSET
    sound: bool | UnsetType = UNSET
    vibrate: bool | UnsetType = UNSET
    removable: bool | UnsetType = UNSET
    click: PushClick | UnsetType = UNSET
    badge: int | UnsetType = UNSET
    extra: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET
    shortened: list[str] | UnsetType = UNSET


_encoder = msgspec.json.Encoder()


class PushText:
    """The JSON of one message for all devices that get it: it differs in the message id only."""

    def __init__(self, fields: PushFields) -> None:
        self._end = b"," + _encoder.encode(fields)[1:]

    def text(self, msgid: int) -> bytes:
        return _START + str(msgid).encode() + self._end


def push_fields(message: Message, expires_ms: int) -> PushFields:
    """Return the fields of a message's frame. `expires_ms` is in ms since 1970."""
    style = message.android
    notification = message.is_notif
    return PushFields(
        is_notif=int(notification),
        content=message.content,
        title=style.title if notification and style.HasField("title") else UNSET,
        sound=style.sound if notification else UNSET,
        vibrate=style.vibrate if notification else UNSET,
        removable=style.removable if notification else UNSET,
        click=_click(style) if notification and style.click_action else UNSET,
        badge=style.badge if style.HasField("badge") else UNSET,
        extra=message.extra if message.HasField("extra") else UNSET,
        expires_at=expires_ms,
    )


def _click(style: AndroidStyle) -> PushClick:
    if not style.click_param_json:
        return PushClick(style.click_action)
    try:
        msgspec.json.decode(style.click_param_json)
    except (ValueError, RecursionError):
        logger.error("a click_param that is no JSON was left out", action=style.click_action)
        return PushClick(style.click_action)
    return PushClick(style.click_action, Raw(style.click_param_json.encode()))
