"""One WebSocket connection of a device: frames in, frames out, and the limits of both."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

from services.domain.device_protocol.answers import CLOSE_CODES, Answer, Goodbye, GoodbyeReason, encode
from services.domain.device_protocol.frames import MAX_FRAME_BYTES
from services.gateway.connections import DeviceSession, OpenConnections
from services.gateway.rules import ConnectionLimits
from services.gateway.websocket.frames import (
    CLOSE,
    PING,
    POLICY_VIOLATION,
    PONG,
    Frame,
    MessageAssembler,
    Violation,
    close_code,
    close_violation,
)
from services.gateway.websocket.protocol import WebSocket
from services.net.http.client_address import ClientAddresses
from services.process.logs import logger
from services.process.metrics import GOODBYES

# The interface of the handlers of a device connection's frames.

Connection = TypeVar("Connection")


class Handler(Generic[Connection]):
    """Handles a connection in one stage of its life: `Handshake` before the welcome, `SessionHandler` after it."""

    def opened(self, connection: Connection) -> None:
        """The WebSocket is open."""

    def received(self, connection: Connection, payload: bytes) -> None:
        """A text message is complete."""
        raise NotImplementedError

    def answered_ping(self, connection: Connection, payload: bytes) -> None:
        """A pong came, whether or not it answers a ping."""

    def closing(self, connection: Connection, reason: str) -> None:
        """No further frame is sent over the connection; called once. `reason`: "" if the device closed it properly."""


# The pushes that a gateway does not send over a connection again: the device has them, or gets them over it.

_MAX_REPEATABLE = 32
_MAX_WITHDRAWN = 2000
"""Upper bound of the withdrawn pushes of a connection; at most half as many wait for a device at a time."""

_NONE: frozenset[int] = frozenset()


class SentPushes:
    """The pushes that a connection must not be sent: the unacknowledged ones, each with its time of sending in ms, and
    the repeatable and withdrawn ones.

    Repeatable: delivery may send the push once more, because it may not know yet that the device has acknowledged it.
    Withdrawn: the push was on its way to the connection when delivery dropped it.
    """

    __slots__ = ("_repeatable", "_times_ms", "_withdrawn")

    def __init__(self) -> None:
        self._times_ms: dict[int, int] = {}
        self._repeatable: set[int] = set()
        self._withdrawn: Collection[int] = _NONE

    def note(self, msgid: int, now_ms: int) -> None:
        self._times_ms.setdefault(msgid, now_ms)

    def has(self, msgid: int) -> bool:
        """Return whether the push is unacknowledged, repeatable or withdrawn, so that it is not sent any more."""
        return msgid in self._times_ms or msgid in self._repeatable or msgid in self._withdrawn

    def is_unacknowledged(self, msgid: int) -> bool:
        return msgid in self._times_ms

    def acknowledge(self, msgids: Iterable[int]) -> int:
        """Note acknowledged pushes; return how many were not sent over this connection, or were acknowledged before.

        Such pushes may have been sent over an earlier connection, and delivery may send them once more before it gets
        the acknowledgement. They become repeatable.
        """
        unsent = [msgid for msgid in msgids if self._times_ms.pop(msgid, None) is None]
        if len(self._repeatable) < _MAX_REPEATABLE:
            self._repeatable.update(unsent[:_MAX_REPEATABLE])
        return len(unsent)

    def withdraw(self, msgids: Iterable[int]) -> None:
        """Note pushes that delivery has dropped; the latest _MAX_WITHDRAWN are kept."""
        self._withdrawn = dict.fromkeys([*self._withdrawn, *msgids][-_MAX_WITHDRAWN:])

    def begin_stream(self) -> None:
        """Note that a new stream from delivery begins: all unacknowledged pushes are repeatable from now on.

        The gateway has handed in all earlier acknowledgements before it announces the connection over the new stream.
        A later one may reach delivery after it has sent the push again.
        """
        self._repeatable = set(self._times_ms)

    @property
    def oldest_ms(self) -> int | None:
        """When the first of the unacknowledged pushes was sent."""
        return next(iter(self._times_ms.values()), None)

    @property
    def is_empty(self) -> bool:
        return not self._times_ms and not self._repeatable and not self._withdrawn


NOTHING_SENT = SentPushes()
"""Shared by all connections over which nothing was sent or acknowledged."""


MAX_QUEUED_REQUESTS = 64
"""Requests of one device that may wait for the earlier ones to be answered."""

_MAX_CLOSE_REASON_BYTES = 120
_WATERMARK_BYTES = 128 * 1024
_RETRY_AFTER_MS = 60_000

Request = Callable[[], Coroutine[Any, Any, None]]


class DeviceConnection:
    """The connection of one device; `session` is set by the welcome, which also replaces the handler.

    `address` is the device's, without a port. `unsent_reports` counts, in each window of the frame limit, the device's
    reports on pushes that were not sent over this connection. `has_unapplied_activity`: the device has reported an app
    open or a login that the roles which choose devices may not have applied yet. `is_draining`: a draining goodbye was
    sent, and the session goes on until the device closes, because its acknowledgements and reports may be on their way.
    """

    __slots__ = (
        "_addresses",
        "_frames_in_window",
        "_handler",
        "_limits",
        "_messages",
        "_now_ms",
        "_on_welcome",
        "_open_connections",
        "_requests",
        "_resumed",
        "_socket",
        "_window",
        "address",
        "closing_ms",
        "has_unapplied_activity",
        "hello_received",
        "id",
        "idle_after_ms",
        "is_draining",
        "last_frame_ms",
        "paused_ms",
        "sent",
        "session",
        "unsent_reports",
    )

    def __init__(
        self,
        handler: "Handler[DeviceConnection]",
        open_connections: "OpenConnections[DeviceConnection]",
        limits: ConnectionLimits,
        now_ms: Callable[[], int],
        addresses: ClientAddresses,
        on_welcome: Callable[[], None] | None = None,
    ) -> None:
        """`on_welcome` is called when the session starts."""
        self._addresses = addresses
        self.address = ""
        self._on_welcome = on_welcome
        self._handler = handler
        self._open_connections = open_connections
        self._limits = limits
        self._now_ms = now_ms
        self._socket: WebSocket | None = None
        self._messages = MessageAssembler(MAX_FRAME_BYTES)
        self._requests: deque[Request] | None = None
        self._resumed: asyncio.Event | None = None
        self._window = self._frames_in_window = self.unsent_reports = self.id = 0
        self.has_unapplied_activity = False
        self.last_frame_ms = now_ms()
        self.idle_after_ms = limits.hello_ms
        self.paused_ms: int | None = None
        self.closing_ms: int | None = None
        self.is_draining = False
        self.hello_received = False
        self.session: DeviceSession | None = None
        self.sent = NOTHING_SENT

    @property
    def oldest_unacknowledged_ms(self) -> int | None:
        """When the first of the unacknowledged pushes was sent."""
        return self.sent.oldest_ms

    def start_session(self, session: DeviceSession, handler: "Handler[DeviceConnection]", idle_after_ms: int) -> None:
        """Hand over to the session's handler. From now on every frame, not hello alone, restarts the idle deadline."""
        self.session = session
        self._handler = handler
        self.idle_after_ms = idle_after_ms
        self.last_frame_ms = self._now_ms()
        if self._on_welcome is not None:
            self._on_welcome()
            self._on_welcome = None

    def send(self, answer: Answer) -> None:
        self._end_if_slow()
        if self._socket is not None and self.closing_ms is None:
            self._socket.send_text(encode(answer))

    def send_push(self, frame: bytes, msgid: int, now_ms: int) -> None:
        """Send a complete WebSocket frame, which connections share, unless the device has the push."""
        if self._socket is not None and self.closing_ms is None and not self.sent.has(msgid):
            self._socket.transport.write(frame)
            self._note_sent(msgid, now_ms)

    def send_pushes(self, frames: bytes, msgids: Sequence[int], now_ms: int) -> None:
        """Send several push frames in one write: complete WebSocket frames, of pushes that the device does not have."""
        if self._socket is not None and self.closing_ms is None:
            self._socket.transport.write(frames)
            for msgid in msgids:
                self._note_sent(msgid, now_ms)

    def send_ping(self, payload: bytes) -> None:
        """Send a ping, which counts as the message 0: the device must answer it as it must acknowledge a push."""
        if self._socket is not None:
            self._socket.send_ping(payload)
            self._note_sent(0, self._now_ms())

    def _note_sent(self, msgid: int, now_ms: int) -> None:
        """Note when a push was sent, and end the connection if it is slow."""
        if self.sent is NOTHING_SENT:
            self.sent = SentPushes()
        self.sent.note(msgid, now_ms)
        if self.paused_ms is not None:
            self._end_if_slow()

    def _end_if_slow(self) -> None:
        """End the connection when too many unsent bytes wait in memory."""
        if self.paused_ms is not None and self.closing_ms is None and self._socket is not None:
            unsent_bytes = self._socket.transport.get_write_buffer_size()
            if unsent_bytes > self._limits.buffer_bytes:
                self.abort("slow")

    def acknowledged(self, msgids: list[int]) -> int:
        """Note acknowledged pushes; return how many were not sent over this connection, or were acknowledged before."""
        if self.sent is NOTHING_SENT:
            self.sent = SentPushes()
        unsent = self.sent.acknowledge(msgids)
        if self.sent.is_empty:
            self.sent = NOTHING_SENT
        return unsent

    def withdraw(self, msgids: Sequence[int]) -> None:
        """Send these pushes no more over this connection: the device has changed its alias."""
        if msgids:
            if self.sent is NOTHING_SENT:
                self.sent = SentPushes()
            self.sent.withdraw(msgids)

    def goodbye(
        self,
        reason: GoodbyeReason,
        desc: str = "",
        code: int | None = None,
        retry_after_ms: int | None = None,
        recorded_reason: str = "",
    ) -> None:
        """Send the goodbye frame, then start the closing handshake, whose reason shows `desc` to people.

        The session's closing fact carries `recorded_reason`, or else `reason`.
        """
        if self._socket is None or self.closing_ms is not None:
            return
        if retry_after_ms is None:
            retry_after_ms = 0 if reason == "idle" else _RETRY_AFTER_MS
        self._socket.send_text(encode(Goodbye(reason=reason, retry_after_ms=retry_after_ms)))
        cut = (desc or reason).encode()[:_MAX_CLOSE_REASON_BYTES].decode(errors="ignore")
        self._socket.send_close(code or CLOSE_CODES[reason], cut.encode())
        if reason == "draining" and self.session is not None:
            self.closing_ms, self.is_draining = self._now_ms(), True
        else:
            self._start_closing(recorded_reason or reason)
        GOODBYES.labels(reason).inc()

    def abort(self, reason: str) -> None:
        """Close the connection at once, without a goodbye, which the peer would not read."""
        if self._socket is not None:
            self._start_closing(reason)
            self._socket.abort()

    def submit(self, request: Request) -> None:
        """Run the request once the earlier ones are answered and mostly read; end the connection when too many wait."""
        if self._requests is None:
            self._requests = deque([request])
            self._open_connections.start_task(self._run_requests())
        elif len(self._requests) < MAX_QUEUED_REQUESTS:
            self._requests.append(request)
        else:
            self.goodbye("protocol", "too many requests are waiting")

    async def _run_requests(self) -> None:
        try:
            while self._requests:
                while self.paused_ms is not None:  # the answer may be large
                    self._resumed = asyncio.Event()
                    await self._resumed.wait()
                await self._requests[0]()
                self._requests.popleft()
        except Exception as error:
            appkey = self.session.appkey if self.session is not None else ""
            logger.error("an error in the code ended a device's connection", appkey=appkey, exc_info=error)
            self.abort("failed")
        self._requests = None

    # --- callbacks of the WebSocket

    def opened(self, socket: WebSocket, peer: str, forwarded: Sequence[str]) -> None:
        self._socket = socket
        self.address = self._addresses.of(peer, forwarded)
        socket.transport.set_write_buffer_limits(high=_WATERMARK_BYTES)
        self.id = self._open_connections.add(self)
        self._handler.opened(self)

    def received(self, frame: Frame) -> None:
        socket = self._socket
        if socket is None:
            return
        now_ms = self._now_ms()
        if self.session is not None:
            self.last_frame_ms = now_ms
        if frame.opcode == CLOSE:
            self._answer_close(socket, frame.payload)
        elif self.closing_ms is not None and not self.is_draining:
            return
        elif self._over_frame_limit(now_ms):
            self.goodbye("protocol", "too many frames", POLICY_VIOLATION)
        elif self.is_draining and frame.opcode in (PING, PONG):
            return
        elif frame.opcode == PING:
            self._end_if_slow()
            socket.send_pong(frame.payload)
        elif frame.opcode == PONG:
            self._handler.answered_ping(self, frame.payload)
        elif isinstance(message := self._messages.add(frame), bytes):
            self._handler.received(self, message)
        elif message is not None:
            self.violated(message)

    def violated(self, violation: Violation) -> None:
        self.goodbye("protocol", violation.reason, violation.code)

    def closed(self) -> None:
        self._start_closing("lost")
        self._socket = None
        self.resume_writing()
        self._open_connections.discard(self)

    def pause_writing(self) -> None:
        self.paused_ms = self._now_ms()

    def resume_writing(self) -> None:
        self.paused_ms = None
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def _start_closing(self, reason: str) -> None:
        if self.is_draining:
            self.is_draining = False
            self._handler.closing(self, "draining")
        elif self.closing_ms is None:
            self.closing_ms = self._now_ms()
            self._handler.closing(self, reason)

    def _answer_close(self, socket: WebSocket, payload: bytes) -> None:
        """Answer the device's close frame with its own code, if that may be sent; after a goodbye close the socket."""
        if self.closing_ms is None:
            violation = close_violation(payload)
            if violation is not None:
                self.violated(violation)
            else:
                socket.send_close(close_code(payload))
                self._start_closing("")
        elif self.is_draining:
            self._start_closing("draining")
        socket.close()

    def _over_frame_limit(self, now_ms: int) -> bool:
        window = now_ms // self._limits.window_ms
        if window != self._window:
            self._window = window
            self._frames_in_window = 0
            self.unsent_reports = 0
        self._frames_in_window += 1
        return self._frames_in_window > self._limits.frames
