"""Push frames: the JSON of a message, encoded once for all connections that get it, and sent to them."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import NamedTuple

import msgspec
import numpy
from msgspec import UNSET, Raw, UnsetType

from protos.delivery.v1.delivery_pb2 import AttachResponse, Close, GetBroadcastRequest, Send
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.domain.apps import AppDirectory
from services.domain.device_protocol.answers import GoodbyeReason
from services.gateway.connection import HEADROOM, DeviceConnection
from services.gateway.connections import ConnectionTable
from services.gateway.decide import refused_retry_ms
from services.runtime.errors import CarillonError, NotFoundError
from services.runtime.fairness.queue import FairQueue
from services.runtime.process import background
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.metrics import FRAMES_SENT
from services.runtime.rpc.channel import Channel

SLICE = 100
"""Frames that are written in one step of the event loop."""

MAX_WAITING = 100_000
"""Frames that wait for their apps' turns, beyond which no more are taken from delivery."""

_RETRY_MS = 1000
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


class _Slice(NamedTuple):
    """A message for some connections, until `expires_ms`. `msgids` holds one id for each, and `shared` their frame if
    that is the same."""

    frames: PushFrames
    expires_ms: int
    shared: bytearray | None
    connections: Sequence[int]
    msgids: Sequence[int]


def _size(item: _Slice | Close) -> int:
    return len(item.connections) if isinstance(item, _Slice) else 1


class PushSender:
    """Sends delivery's pushes to the connections they name, and ends the connections that delivery wants closed.

    A message for many connections is written in slices, between which other tasks run and other apps have their turns:
    an app's single message waits for one slice of another app's broadcast. Each app's own messages keep their order.
    Messages of a paused app are held until `release`, and count no more towards MAX_WAITING.
    """

    def __init__(
        self,
        connections: ConnectionTable[DeviceConnection],
        now_ms: Callable[[], int],
        random: Random,
        is_paused: Callable[[str], bool],
    ) -> None:
        self._connections = connections
        self._now_ms = now_ms
        self._random = random
        self._is_paused = is_paused
        self._held: set[str] = set()
        self._queue: FairQueue[str, _Slice | Close] = FairQueue()
        self._waiting = self._at_once = 0
        self._writing: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()

    async def handle(self, response: AttachResponse) -> None:
        """Write the messages, or queue them for their apps' turns; return while fewer than MAX_WAITING wait."""
        self._at_once = SLICE
        for send in response.sends:
            self._add(send)
        for close in response.closes:
            self._add_close(close)
        while self._is_full:
            self._has_room.clear()
            await self._has_room.wait()

    @property
    def held(self) -> Sequence[str]:
        """The apps whose messages are held."""
        return list(self._held)

    def held_broadcasts(self, appkey: str) -> set[int]:
        """Return the ids of the app's held messages that several devices share."""
        return {item.msgids[0] for item in self._queue.items(appkey) if isinstance(item, _Slice) and item.shared}

    def release(self, appkey: str, cancelled: Collection[int]) -> None:
        """Write the app's held messages, unless they are cancelled or their time to live is over."""
        now_ms, before = self._now_ms(), self._queue.waiting_size(appkey)

        def is_wanted(item: _Slice | Close) -> bool:
            return isinstance(item, Close) or (item.expires_ms > now_ms and item.msgids[0] not in cancelled)

        self._queue.keep(appkey, is_wanted)
        self._waiting -= round(before - self._queue.waiting_size(appkey))
        self._held.discard(appkey)
        self._start_writing()

    @property
    def _is_full(self) -> bool:
        return self._waiting - sum(map(self._queue.waiting_size, self._held)) > MAX_WAITING

    def _may_write(self, appkey: str) -> bool:
        if self._is_paused(appkey):
            self._held.add(appkey)
        return appkey not in self._held

    def _add(self, send: Send) -> None:
        connections = numpy.frombuffer(send.connections, "<u8").tolist()
        msgids = numpy.frombuffer(send.msgids, "<u8").tolist()
        appkey = next((found for connection in connections if (found := self._app_of(connection))), None)
        if appkey is None:
            return
        frames = PushFrames(send.message, send.expires_ms)
        shared = frames.frame(msgids[0]) if len(msgids) == 1 else None
        if shared is not None:
            msgids *= len(connections)
        for start in range(0, len(connections), SLICE):
            end = start + SLICE
            self._put(appkey, _Slice(frames, send.expires_ms, shared, connections[start:end], msgids[start:end]))

    def _add_close(self, close: Close) -> None:
        """Close after the app's messages that wait, or at once if these are held."""
        if (appkey := self._app_of(close.connection)) and self._may_write(appkey):
            self._put(appkey, close)
        else:
            self._do(close)

    def _app_of(self, connection: int) -> str | None:
        found = self._connections.find(connection)
        return found.session.appkey if found is not None and found.session is not None else None

    def _put(self, appkey: str, item: _Slice | Close) -> None:
        """Do at once what nothing of its app waits before, while this step of the loop has written little."""
        size = _size(item)
        if size <= self._at_once and not self._queue.waiting(appkey) and self._may_write(appkey):
            self._at_once -= size
            self._do(item)
            return
        self._queue.put(appkey, item, size)
        self._waiting += size
        self._start_writing()

    def _start_writing(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = background.start("writer of push frames", self._write())

    async def _write(self) -> None:
        """Write what waits, about a slice in each step of the loop."""
        written = 0
        while (turn := self._queue.take(self._may_write)) is not None:
            self._do(turn[1])
            size = _size(turn[1])
            self._waiting -= size
            written += size
            if not self._is_full:
                self._has_room.set()
            if written >= SLICE:
                written = 0
                await asyncio.sleep(0)
        if not self._is_full:
            self._has_room.set()

    def _do(self, item: _Slice | Close) -> None:
        """Write a slice or a close. An error is logged: what waits for other connections goes on."""
        try:
            if isinstance(item, _Slice):
                self._write_slice(item)
            else:
                self._close(item)
        except Exception as error:
            logger.error("a message could not be written to its connections", exc_info=error)

    def _write_slice(self, part: _Slice) -> None:
        now_ms, sent = self._now_ms(), 0
        for number, msgid in zip(part.connections, part.msgids, strict=True):
            connection = self._connections.find(number)
            if connection is not None:
                connection.send_push(part.shared or part.frames.frame(msgid), msgid, now_ms)
                sent += 1
        FRAMES_SENT.inc(sent)

    def _close(self, close: Close) -> None:
        connection = self._connections.find(close.connection)
        if connection is not None:
            reason = _REASONS.get(close.reason, "draining")
            retry_after_ms = refused_retry_ms(self._random) if reason == "draining" else None
            connection.goodbye(reason, close.reason, retry_after_ms=retry_after_ms)


class PushResumption:
    """Service: lets the sender write an app's held messages when the app is resumed.

    Delivery is asked first which of the broadcasts among them were cancelled meanwhile; unicasts cannot be cancelled.
    """

    name = "gateway-resumption"

    def __init__(self, apps: AppDirectory, sender: PushSender, delivery: Channel, clock: Clock) -> None:
        self._apps = apps
        self._sender = sender
        self._delivery = DeliveryServiceStub(delivery)
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            change = self._apps.pauses_changed
            for appkey in self._sender.held:
                if not self._apps.is_paused(appkey):
                    msgids = list(self._sender.held_broadcasts(appkey))
                    answers = await asyncio.gather(*(self._is_cancelled(appkey, msgid) for msgid in msgids))
                    self._sender.release(appkey, {msgid for msgid, gone in zip(msgids, answers, strict=True) if gone})
            await change.wait()

    async def _is_cancelled(self, appkey: str, msgid: int) -> bool:
        request = GetBroadcastRequest(appkey=appkey, msgid=msgid)
        while True:
            try:
                return bool((await self._delivery.GetBroadcast(request)).cancelled)
            except NotFoundError:
                return False
            except CarillonError as error:
                logger.warning("delivery does not say whether a push was cancelled; trying again", error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)


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
