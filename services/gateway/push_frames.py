"""Push frames: the JSON of a message, encoded once for all connections that get it, and sent to them."""

import asyncio
from collections.abc import Callable
from random import Random

import msgspec
import numpy
from msgspec import UNSET, Raw, UnsetType

from protos.delivery.v1.delivery_pb2 import AttachResponse, Send
from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.domain.device_protocol.answers import GoodbyeReason
from services.gateway.connection import HEADROOM, DeviceConnection
from services.gateway.connections import ConnectionTable
from services.gateway.decide import refused_retry_ms
from services.runtime.process.logs import logger
from services.runtime.process.metrics import FRAMES_SENT

_CHUNK = 256
_REASONS: dict[str, GoodbyeReason] = {"replaced": "replaced", "unauthorized": "unauthorized", "draining": "draining"}
_START = bytes(HEADROOM) + b'{"type":"push","msgid":'


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

    def frame(self, msgid: int) -> bytearray:
        """Return HEADROOM bytes, then the frame's text."""
        return bytearray(_START + str(msgid).encode() + self._end)


class PushSender:
    """Sends delivery's pushes to the connections they name, and ends the connections that delivery wants closed."""

    def __init__(
        self, connections: ConnectionTable[DeviceConnection], now_ms: Callable[[], int], random: Random
    ) -> None:
        self._connections = connections
        self._now_ms = now_ms
        self._random = random

    async def handle(self, response: AttachResponse) -> None:
        sent = 0
        for send in response.sends:
            sent += await self._send(send)
        FRAMES_SENT.inc(sent)
        for close in response.closes:
            connection = self._connections.find(close.connection)
            if connection is not None:
                reason = _REASONS.get(close.reason, "draining")
                retry_after_ms = refused_retry_ms(self._random) if reason == "draining" else None
                connection.goodbye(reason, close.reason, retry_after_ms=retry_after_ms)

    async def _send(self, send: Send) -> int:
        """Write the message to its connections that are still open, in chunks between which other tasks run."""
        frames = PushFrames(send.message, send.expires_ms)
        connections = numpy.frombuffer(send.connections, "<u8").tolist()
        msgids = numpy.frombuffer(send.msgids, "<u8").tolist()
        shared = frames.frame(msgids[0]) if len(msgids) == 1 else None
        if shared is not None:
            msgids *= len(connections)
        sent = 0
        for start in range(0, len(connections), _CHUNK):
            if start:
                await asyncio.sleep(0)
            now_ms = self._now_ms()
            for index in range(start, min(start + _CHUNK, len(connections))):
                connection = self._connections.find(connections[index])
                if connection is not None:
                    connection.send_push(shared or frames.frame(msgids[index]), msgids[index], now_ms)
                    sent += 1
        return sent


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
