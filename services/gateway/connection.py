"""One WebSocket connection: frames in, frames out, and the limits of both."""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from services.domain.device_protocol import MAX_FRAME_BYTES, Answer, Goodbye, GoodbyeReason, encode
from services.gateway.connections import Session
from services.gateway.decide import Limits
from services.gateway.push_frames import HEADROOM
from services.runtime.process.logs import logger
from services.runtime.process.metrics import GOODBYES

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
_DEFINED_CODES = frozenset([*range(1000, 1004), *range(1007, 1015)])
"""Close codes below 3000 that may be sent: RFC 6455, and 1012 to 1014 which were registered later."""

_OWN_CODES = range(3000, 5000)

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
        "_owed",
        "_partial",
        "_transport",
        "_window",
        "_work",
        "closing_ms",
        "greeted",
        "last_ms",
        "patience_ms",
        "paused_ms",
        "session",
    )

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: WSTransport | None = None
        self._partial: bytearray | None = None
        self._work: deque[Work] | None = None
        self._owed: dict[int, int] | None = None
        self._window = 0
        self._frames = 0
        self.last_ms = door.now_ms()
        self.patience_ms = door.limits.hello_ms
        self.paused_ms: int | None = None
        self.closing_ms: int | None = None
        self.greeted = False
        self.session: Session | None = None

    @property
    def address(self) -> str:
        peer = self._transport.underlying_transport.get_extra_info("peername") if self._transport else None
        return str(peer[0]) if peer else ""

    def admit(self, session: Session, patience_ms: int) -> None:
        """From now on every frame is a sign of life; until here the device had to be quick."""
        self.session = session
        self.patience_ms = patience_ms
        self.last_ms = self._door.now_ms()

    @property
    def owed_ms(self) -> int | None:
        """When the first push was sent that is not acknowledged yet."""
        return None if self._owed is None else next(iter(self._owed.values()))

    def send(self, answer: Answer) -> None:
        if self._transport is not None and self.closing_ms is None:
            self._transport.send(WSMsgType.TEXT, encode(answer))

    def push(self, frame: bytearray, msgid: int, now_ms: int) -> None:
        """Send a frame that others get too. Its first HEADROOM bytes are written over."""
        if self._transport is None:
            return
        self._transport.send_reuse_external_bytearray(WSMsgType.TEXT, frame, HEADROOM)
        if self._owed is None:
            self._owed = {msgid: now_ms}
        else:
            self._owed.setdefault(msgid, now_ms)
        if self.paused_ms is not None:
            waiting = self._transport.underlying_transport.get_write_buffer_size()
            if waiting > self._door.limits.buffer_bytes:
                self.abort("slow")

    def acknowledged(self, msgids: list[int]) -> None:
        if self._owed is not None:
            for msgid in msgids:
                self._owed.pop(msgid, None)
            self._owed = self._owed or None

    def goodbye(
        self,
        reason: GoodbyeReason,
        desc: str = "",
        code: WSCloseCode | None = None,
        retry_after_ms: int | None = None,
        fact: str = "",
    ) -> None:
        """The last frame, then the closing handshake; `desc` goes into its reason for people to read.

        The session's last fact says `fact`, or else `reason`.
        """
        if self._transport is None or self.closing_ms is not None:
            return
        if retry_after_ms is None:
            retry_after_ms = 0 if reason == "idle" else _RETRY_AFTER_MS
        self.send(Goodbye(reason=reason, retry_after_ms=retry_after_ms))
        self._transport.send_close(code or _CODES[reason], (desc or reason).encode()[:120])
        self._leave(fact or reason)
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
        if self.session is not None:
            self.last_ms = now_ms
        if self.closing_ms is not None or transport.is_close_frame_sent:
            self._leave("protocol")
            if frame.msg_type == WSMsgType.CLOSE:
                transport.disconnect()
        elif frame.rsv1 or frame.rsv2 or frame.rsv3:
            self.goodbye("protocol", "reserved bits are set")
        elif frame.msg_type == WSMsgType.CLOSE:
            self._answer_close(transport, frame)
        elif self._too_many(now_ms):
            self.goodbye("protocol", "too many frames", WSCloseCode.POLICY_VIOLATION)
        elif frame.msg_type == WSMsgType.PING:
            transport.send_pong(frame.get_payload_as_bytes())
        elif frame.msg_type != WSMsgType.PONG and (payload := self._payload(frame)) is not None:
            self._door.received(self, payload)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._leave("protocol" if transport.is_close_frame_sent else "lost")
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

    def _answer_close(self, transport: WSTransport, frame: WSFrame) -> None:
        """The device's own close: its code comes back, unless it is one that must not be sent (RFC 6455, 7.4)."""
        reason = ""
        if frame.payload_size == 0:
            transport.send(WSMsgType.CLOSE, b"")
        elif _may_be_sent(frame.get_close_code().value):
            transport.send_close(frame.get_close_code())
        else:
            transport.send_close(WSCloseCode.PROTOCOL_ERROR)
            reason = "protocol"
        self._leave(reason)
        transport.disconnect()

    def _too_many(self, now_ms: int) -> bool:
        window = now_ms // self._door.limits.window_ms
        if window != self._window:
            self._window = window
            self._frames = 0
        self._frames += 1
        return self._frames > self._door.limits.frames

    def _payload(self, frame: WSFrame) -> bytes | None:
        """The text that is complete with this frame; None when more of it is to come, or after a goodbye."""
        if (frame.msg_type == WSMsgType.CONTINUATION) != (self._partial is not None):
            self.goodbye("protocol", "fragments out of order")
            return None
        if frame.msg_type == WSMsgType.BINARY:
            self.goodbye("protocol", "text frames only", WSCloseCode.UNSUPPORTED_DATA)
            return None
        payload: bytes = frame.get_payload_as_bytes()
        if len(payload) + len(self._partial or b"") > MAX_FRAME_BYTES:
            text = f"a frame has {MAX_FRAME_BYTES} bytes at most"
            self.goodbye("protocol", text, WSCloseCode.MESSAGE_TOO_BIG)
            return None
        if self._partial is not None or not frame.fin:
            self._partial = (self._partial or bytearray()) + payload
            if not frame.fin:
                return None
            payload, self._partial = bytes(self._partial), None
        if not _is_text(payload):
            self.goodbye("protocol", "text must be UTF-8", WSCloseCode.INVALID_TEXT)
            return None
        return payload


def _is_text(payload: bytes) -> bool:
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_be_sent(code: int) -> bool:
    return code in _DEFINED_CODES or code in _OWN_CODES
