"""Push frames: the JSON of a message, encoded once for all connections that get it."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.gateway.websocket.frames import TEXT, encode
from services.runtime.process.logs import logger

_START = b'{"type":"push","msgid":'


class Click(msgspec.Struct, frozen=True):
    action: int
    param: Raw | UnsetType = UNSET


class PushFrame(msgspec.Struct, frozen=True):
    """The fields of a push frame without `type` and `msgid`, which are spliced into its JSON."""

    is_notif: int
    content: str
    title: str | UnsetType = UNSET
    sound: bool | UnsetType = UNSET
    vibrate: bool | UnsetType = UNSET
    removable: bool | UnsetType = UNSET
    click: Click | UnsetType = UNSET
    badge: int | UnsetType = UNSET
    extra: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET


_encoder = msgspec.json.Encoder()


class PushFrames:
    """The frames of one message, which differ in the message id only. `expires_ms` is in ms since 1970."""

    def __init__(self, message: Message, expires_ms: int) -> None:
        self._end = b"," + _encoder.encode(_push_frame(message, expires_ms))[1:]

    def text(self, msgid: int) -> bytes:
        return _START + str(msgid).encode() + self._end

    def frame(self, msgid: int) -> bytes:
        """Return the complete WebSocket frame of the text."""
        return encode(TEXT, self.text(msgid))


def _push_frame(message: Message, expires_ms: int) -> PushFrame:
    style = message.android
    notification = message.is_notif
    return PushFrame(
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


def _click(style: AndroidStyle) -> Click:
    if not style.click_param_json:
        return Click(style.click_action)
    try:
        msgspec.json.decode(style.click_param_json)
    except (ValueError, RecursionError):
        logger.error("a click_param that is no JSON was left out", action=style.click_action)
        return Click(style.click_action)
    return Click(style.click_action, Raw(style.click_param_json.encode()))
