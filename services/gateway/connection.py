"""One WebSocket connection: frames in, frames out, and the limits of both."""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from services.gateway.decide import Limits
from services.gateway.frames import HEADROOM
from services.gateway.state import Session
from services.runtime.device_protocol import MAX_FRAME_BYTES, Answer, Goodbye, GoodbyeReason, encode
from services.runtime.logs import logger
from services.runtime.metrics import GOODBYES

MAX_WAITING = 64
"""Requests of one device that may wait for their turn."""

_WATERMARK_BYTES = 128 * 1024
_RETRY_AFTER_MS = 60_000
_CODES: dict[GoodbyeReason, WSCloseCode] = {
    "draining": WSCloseCode.SERVICE_RESTART,
    "replaced": WSCloseCode.OK,
    "unauthorized": WSCloseCode.POLICY_VIOLATION,
    "protocol": WSCloseCode.PROTOCOL_ERROR,
    "idle": WSCloseCode.GOING_AWAY,
}

Work = Callable[[], Coroutine[Any, Any, None]]


class Door(Protocol):
    """What a connection tells."""

    limits: Limits

    def now_ms(self) -> int: ...
    def opened(self, connection: "Connection") -> None: ...
    def received(self, connection: "Connection", payload: bytes) -> None: ...
    def leaving(self, connection: "Connection", reason: str) -> None:
        """No frame goes out any more; called once."""
        ...

    def closed(self, connection: "Connection") -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Connection(WSListener):
    """`greeted` once hello came, `session` once the device was welcomed. `address` is the peer's, without a port."""

    __slots__ = (
        "_door",
        "_frames",
        "_partial",
        "_transport",
        "_window",
        "_work",
        "closing_ms",
        "greeted",
        "last_ms",
        "paused_ms",
        "session",
    )

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: WSTransport | None = None
        self._partial: bytearray | None = None
        self._work: deque[Work] | None = None
        self._window = 0
        self._frames = 0
        self.last_ms = door.now_ms()
        self.paused_ms: int | None = None
        self.closing_ms: int | None = None
        self.greeted = False
        self.session: Session | None = None

    @property
    def address(self) -> str:
        peer = self._transport.underlying_transport.get_extra_info("peername") if self._transport else None
        return str(peer[0]) if peer else ""

    def send(self, answer: Answer) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, encode(answer))

    def push(self, frame: bytearray) -> None:
        """Send a frame that others get too. Its first HEADROOM bytes are written over."""
        if self._transport is None:
            return
        self._transport.send_reuse_external_bytearray(WSMsgType.TEXT, frame, HEADROOM)
        if self.paused_ms is not None:
            waiting = self._transport.underlying_transport.get_write_buffer_size()
            if waiting > self._door.limits.buffer_bytes:
                self.abort("slow")

    def goodbye(
        self,
        reason: GoodbyeReason,
        desc: str = "",
        code: WSCloseCode | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        """The last frame, then the closing handshake; `desc` goes into its reason for people to read."""
        if self._transport is None or self.closing_ms is not None:
            return
        if retry_after_ms is None:
            retry_after_ms = 0 if reason == "idle" else _RETRY_AFTER_MS
        self.send(Goodbye(reason=reason, retry_after_ms=retry_after_ms))
        self._transport.send_close(code or _CODES[reason], (desc or reason).encode()[:120])
        self._leave(reason)
        GOODBYES.labels(reason).inc()

    def abort(self, reason: str) -> None:
        """End the connection at once, without a word: the peer would not read it."""
        if self._transport is not None:
            self._leave(reason)
            self._transport.disconnect(graceful=False)

    def submit(self, work: Work) -> None:
        """Do this after the device's earlier requests; a device with too many waiting is sent away."""
        if self._work is None:
            self._work = deque([work])
            self._door.spawn(self._drain())
        elif len(self._work) < MAX_WAITING:
            self._work.append(work)
        else:
            self.goodbye("protocol", "too many requests are waiting")

    async def _drain(self) -> None:
        try:
            while self._work:
                await self._work[0]()
                self._work.popleft()
        except Exception as error:
            logger.error("a device's request failed", exc_info=error)
            self.abort("failed")
        self._work = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.request.headers.clear()
        transport.response.headers.clear()
        transport.underlying_transport.set_write_buffer_limits(high=_WATERMARK_BYTES)
        self._door.opened(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now_ms = self._door.now_ms()
        self.last_ms = now_ms
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif self.closing_ms is not None:
            return
        elif self._too_many(now_ms):
            self.goodbye("protocol", "too many frames", WSCloseCode.POLICY_VIOLATION)
        elif frame.msg_type == WSMsgType.PING:
            transport.send_pong(frame.get_payload_as_bytes())
        elif frame.msg_type != WSMsgType.PONG and (payload := self._payload(frame)) is not None:
            self._door.received(self, payload)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        handshake = transport.close_handshake
        self._leave("" if handshake is not None and handshake.recv is not None else "lost")
        self._transport = None
        self._door.closed(self)

    def pause_writing(self) -> None:
        self.paused_ms = self._door.now_ms()

    def resume_writing(self) -> None:
        self.paused_ms = None

    def _leave(self, reason: str) -> None:
        if self.closing_ms is None:
            self.closing_ms = self._door.now_ms()
            self._door.leaving(self, reason)

    def _too_many(self, now_ms: int) -> bool:
        window = now_ms // self._door.limits.window_ms
        if window != self._window:
            self._window = window
            self._frames = 0
        self._frames += 1
        return self._frames > self._door.limits.frames

    def _payload(self, frame: WSFrame) -> bytes | None:
        """The text that is complete with this frame; None when more of it is to come, or after a goodbye."""
        if frame.msg_type == WSMsgType.BINARY:
            self.goodbye("protocol", "text frames only", WSCloseCode.UNSUPPORTED_DATA)
            return None
        if (frame.msg_type == WSMsgType.CONTINUATION) != (self._partial is not None):
            self.goodbye("protocol", "fragments out of order")
            return None
        payload: bytes = frame.get_payload_as_bytes()
        if len(payload) + len(self._partial or b"") > MAX_FRAME_BYTES:
            text = f"a frame has {MAX_FRAME_BYTES} bytes at most"
            self.goodbye("protocol", text, WSCloseCode.MESSAGE_TOO_BIG)
            return None
        if frame.fin and self._partial is None:
            return payload
        self._partial = (self._partial or bytearray()) + payload
        if not frame.fin:
            return None
        whole, self._partial = bytes(self._partial), None
        return whole
