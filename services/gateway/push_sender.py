"""Sends delivery's pushes to the connections they name."""

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import NamedTuple

import numpy

from protos.delivery.v1.delivery_pb2 import AttachResponse, Close, GetBroadcastRequest, Send
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from services.domain.apps import AppDirectory
from services.domain.device_protocol.answers import GoodbyeReason
from services.errors import CarillonError, NotFoundError
from services.gateway.connection import DeviceConnection
from services.gateway.connections import ConnectionTable, DeviceSession
from services.gateway.push_frames import SLICE, Burst, BurstPart, OpenBursts, PushFrames
from services.gateway.rules import refused_retry_ms
from services.net.fairness import FairQueue, FairSemaphore
from services.net.rpc.channel import Channel
from services.process import background, push_traces, stages
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import FRAMES_SENT

MAX_WAITING = 100_000
"""Frames that wait for their apps' turns, beyond which no more are taken from delivery."""

_REASONS: dict[str, GoodbyeReason] = {"replaced": "replaced", "unauthorized": "unauthorized", "draining": "draining"}


class _Slice(NamedTuple):
    """A message for connections, with an id for each. `shared`: their frame, if one id and frame serves all of them."""

    frames: PushFrames
    expires_ms: int
    shared: bytes | None
    connections: Sequence[int]
    msgids: Sequence[int]


def _size(item: _Slice | Burst | Close) -> int:
    """Return the number of frames of an item."""
    if isinstance(item, Burst):
        return item.frames_left
    return len(item.connections) if isinstance(item, _Slice) else 1


def _msgid(part: _Slice | BurstPart | Close) -> int | None:
    """Return the id of the first message; None for a close."""
    if isinstance(part, BurstPart):
        return part.messages[0].msgid
    return part.msgids[0] if isinstance(part, _Slice) else None


class PushSender:
    """Sends delivery's pushes to the connections they name, and ends the connections that delivery wants closed.

    A message for many connections is written in slices, between which other tasks run and other apps have their turns:
    an app's single message waits for one slice of another app's broadcast. Each connection gets its messages in order.
    Messages of a paused app are held until `release`, and do not count towards MAX_WAITING.
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
        self._held: dict[str, None] = {}
        self._queue: FairQueue[str, _Slice | Burst | Close] = FairQueue()
        self._open_bursts: defaultdict[str, OpenBursts] = defaultdict(OpenBursts)
        self._frames: Counter[str] = Counter()
        self._all_frames = self._at_once = 0
        self._writing: asyncio.Task[None] | None = None
        self._has_capacity = asyncio.Event()

    def begin_stream(self, shard: int, shards: int) -> list[DeviceSession]:
        """Note that a new stream from this shard of delivery begins; return the sessions that belong to the shard.

        A push that was sent over a connection before is not sent over it again: a new owner may not know that it was.
        """
        sessions = list(self._connections.sessions(shard, shards))
        for connection in (self._connections.find(session.connection) for session in sessions):
            if connection is not None:
                connection.sent.begin_stream()
        return sessions

    async def handle(self, response: AttachResponse) -> None:
        """Write the messages, or queue them for their apps' turns; return once at most MAX_WAITING frames wait."""
        self._at_once = SLICE
        for send in response.sends:
            self._add(send)
        for close in response.closes:
            self._add_close(close)
        while self._is_full:
            self._has_capacity.clear()
            await self._has_capacity.wait()

    @property
    def held(self) -> Sequence[str]:
        """The apps whose messages are held, in the order in which that began."""
        return list(self._held)

    def held_broadcasts(self, appkey: str) -> set[int]:
        """Return the ids of the app's held messages that several devices may share."""
        items = self._queue.items(appkey)
        shared = {item.msgids[0] for item in items if isinstance(item, _Slice) and item.shared}
        return shared | {message.msgid for item in items if isinstance(item, Burst) for message in item.messages}

    def release(self, appkey: str, cancelled: Collection[int]) -> None:
        """Write the app's held messages, unless they are cancelled or their time to live is over."""
        now_ms = self._now_ms()

        def is_wanted(msgid: int, expires_ms: int) -> bool:
            return expires_ms > now_ms and msgid not in cancelled

        def is_needed(item: _Slice | Burst | Close) -> bool:
            if isinstance(item, Burst):
                return bool(item.messages)
            return isinstance(item, Close) or is_wanted(item.msgids[0], item.expires_ms)

        for item in self._queue.items(appkey):
            if isinstance(item, Burst):
                item.keep(is_wanted)
        self._queue.keep(appkey, is_needed)
        left = {id(item): _size(item) for item in self._queue.items(appkey)}
        self._count(appkey, sum(left.values()) - self._frames[appkey])
        self._held.pop(appkey, None)
        self._start_writing()

    @property
    def _is_full(self) -> bool:
        return self._all_frames - sum(self._frames[appkey] for appkey in self._held) > MAX_WAITING

    def _may_write(self, appkey: str) -> bool:
        if self._is_paused(appkey):
            self._held[appkey] = None
        return appkey not in self._held

    def _add(self, send: Send) -> None:
        connections = numpy.frombuffer(send.connections, "<u8").tolist()
        msgids = numpy.frombuffer(send.msgids, "<u8").tolist()
        stages.note("handed", msgids[0])
        push_traces.handed(send.trace, msgids[0], len(connections))
        appkey = next((found for connection in connections if (found := self._app_of(connection))), None)
        if appkey is None:
            return
        frames = PushFrames(send.message, send.expires_ms)
        shared = frames.frame(msgids[0]) if len(msgids) == 1 else None
        if shared is not None and len(connections) > 1 and not self._may_do_at_once(appkey, len(connections)):
            self._add_to_burst(appkey, send, connections, shared, msgids[0])
            return
        if shared is not None:
            msgids *= len(connections)
        self._open_bursts[appkey].close(connections)
        for start in range(0, len(connections), SLICE):
            end = start + SLICE
            self._put(appkey, _Slice(frames, send.expires_ms, shared, connections[start:end], msgids[start:end]))

    def _add_to_burst(self, appkey: str, send: Send, connections: Sequence[int], frame: bytes, msgid: int) -> None:
        burst = self._open_bursts[appkey].burst(send.connections, connections, frame)
        for _ in range(burst.add(frame, msgid, send.expires_ms)):
            self._queue.put(appkey, burst, min(SLICE, len(connections)))
        self._count(appkey, len(connections))
        self._start_writing()

    def _add_close(self, close: Close) -> None:
        """Close after the app's messages that wait, or at once if these are held."""
        if (appkey := self._app_of(close.connection)) and self._may_write(appkey):
            self._open_bursts[appkey].close([close.connection])
            self._put(appkey, close)
        else:
            self._do(close)

    def _app_of(self, connection: int) -> str | None:
        found = self._connections.find(connection)
        return found.session.appkey if found is not None and found.session is not None else None

    def _may_do_at_once(self, appkey: str, size: int) -> bool:
        """Whether nothing of the app waits, it is not held or paused, and `size` frames fit at once."""
        return size <= self._at_once and not self._queue.waiting(appkey) and self._may_write(appkey)

    def _put(self, appkey: str, item: _Slice | Close) -> None:
        size = _size(item)
        if self._may_do_at_once(appkey, size):
            self._at_once -= size
            self._do(item)
            return
        self._queue.put(appkey, item, size)
        self._count(appkey, size)
        self._start_writing()

    def _count(self, appkey: str, frames: int) -> None:
        """Add to the number of the app's waiting frames; forget an app without waiting frames."""
        self._frames[appkey] += frames
        self._all_frames += frames
        if not self._queue.waiting(appkey):
            del self._frames[appkey]
            self._open_bursts.pop(appkey, None)

    def _start_writing(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = background.start("writer of push frames", self._write())

    async def _write(self) -> None:
        """Write the messages that wait, about a slice in each step of the loop."""
        written = 0
        while (turn := self._queue.take(self._may_write)) is not None:
            frames = self._do(turn[1])
            self._count(turn[0], -frames)
            written += frames
            if not self._is_full:
                self._has_capacity.set()
            if written >= SLICE:
                written = 0
                await asyncio.sleep(0)
        if not self._is_full:
            self._has_capacity.set()

    def _do(self, item: _Slice | Burst | Close) -> int:
        """Write a slice of messages or a close; return the number of frames.

        An error is logged and ends this slice; further slices are written all the same.
        """
        part = item.take() if isinstance(item, Burst) else item
        try:
            if isinstance(part, BurstPart):
                self._write_burst(part)
            elif isinstance(part, _Slice):
                self._write_slice(part)
            else:
                self._close(part)
        except Exception as error:
            logger.error("a message could not be written to its connections", msgid=_msgid(part), exc_info=error)
        return len(part.connections) * len(part.messages) if isinstance(part, BurstPart) else _size(part)

    def _write_slice(self, part: _Slice) -> None:
        now_ms, sent = self._now_ms(), 0
        shared, frame = part.shared, part.frames.frame
        for connection, msgid in zip(map(self._connections.find, part.connections), part.msgids, strict=True):
            if connection is not None:
                connection.send_push(shared or frame(msgid), msgid, now_ms)
                sent += 1
        FRAMES_SENT.inc(sent)
        push_traces.first_written(part.msgids[:1])

    def _write_burst(self, part: BurstPart) -> None:
        now_ms, sent = self._now_ms(), 0
        msgids = [message.msgid for message in part.messages]
        joined = b"".join(message.frame for message in part.messages)
        for connection in map(self._connections.find, part.connections):
            if connection is not None and len(msgids) == 1:
                connection.send_push(part.messages[0].frame, msgids[0], now_ms)
                sent += 1
            elif connection is not None and not any(map(connection.sent.has, msgids)):
                connection.send_pushes(joined, msgids, now_ms)
                sent += len(msgids)
            elif connection is not None:
                for message in part.messages:
                    connection.send_push(message.frame, message.msgid, now_ms)
                sent += len(msgids)
        FRAMES_SENT.inc(sent)
        push_traces.first_written(msgids)

    def _close(self, close: Close) -> None:
        connection = self._connections.find(close.connection)
        if connection is not None:
            reason = _REASONS.get(close.reason, "draining")
            retry_after_ms = refused_retry_ms(self._random) if reason == "draining" else None
            connection.goodbye(reason, close.reason, retry_after_ms=retry_after_ms)


# Continues the sending of apps' held messages when the apps are resumed.

_RETRY_MS = 1000

QUESTIONS = 64
"""Calls to delivery in flight, at most; apps take turns."""


class PushResumption:
    """Service: lets the sender write the held messages of each resumed app, without waiting for other apps.

    Delivery is asked first which of the broadcasts among them were cancelled meanwhile; unicasts cannot be cancelled.
    Every instance of delivery knows all broadcasts, so after one that does not answer the next one is asked.
    """

    name = "gateway-resumption"

    def __init__(self, apps: AppDirectory, sender: PushSender, deliveries: Sequence[Channel], clock: Clock) -> None:
        """`deliveries`: channels to the instances of delivery."""
        self._apps = apps
        self._sender = sender
        self._deliveries = deque(map(DeliveryServiceStub, deliveries))
        self._clock = clock
        self._questions = FairSemaphore("questions about broadcasts", QUESTIONS, max_waiting=math.inf)
        self._releases: dict[str, asyncio.Task[None]] = {}

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            while True:
                change = self._apps.pauses_changed
                self._note_pauses()
                await change.wait()
        finally:
            for release in self._releases.values():
                release.cancel()

    def _note_pauses(self) -> None:
        """Start a release for each resumed app, and end those of apps that are paused again: broadcasts about which
        delivery has answered may be cancelled before the next resume."""
        self._releases = {appkey: release for appkey, release in self._releases.items() if not release.done()}
        for appkey in self._sender.held:
            if self._apps.is_paused(appkey):
                if (release := self._releases.pop(appkey, None)) is not None:
                    release.cancel()
            elif appkey not in self._releases:
                self._releases[appkey] = background.start("release of a resumed app", self._release(appkey))

    async def _release(self, appkey: str) -> None:
        msgids = list(self._sender.held_broadcasts(appkey))
        answers = await asyncio.gather(*(self._is_cancelled(appkey, msgid) for msgid in msgids))
        self._sender.release(appkey, {msgid for msgid, gone in zip(msgids, answers, strict=True) if gone})

    async def _is_cancelled(self, appkey: str, msgid: int) -> bool:
        request = GetBroadcastRequest(appkey=appkey, msgid=msgid)
        while True:
            delivery = self._deliveries[0]
            try:
                async with self._questions.slot(appkey):
                    return bool((await delivery.GetBroadcast(request)).cancelled)
            except NotFoundError:
                return False
            except CarillonError as error:
                logger.warning("delivery does not say whether a push was cancelled; trying again", error=str(error))
                if self._deliveries[0] is delivery:
                    self._deliveries.rotate(-1)
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)
