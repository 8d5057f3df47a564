"""WebSocket connections without sockets: a device's end, a gateway's end, and a network between."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from picows import WSCloseCode, WSListener, WSMsgType

from services.gateway.websocket.frames import CLOSE, PING, PONG, TEXT, Frame, close_code
from services.gateway.websocket.protocol import Listener
from tests.simulation.kernel.network.ends import ConnectionEnd, ContextOf

_SIZE_FOLLOWS = 126
_LARGER = 2000
"""How many times larger a frame counts that waits to be read, since worlds have few of them."""


class _WebSocketEnd(ConnectionEnd):
    """One end of a WebSocket connection, which sends and receives frames."""

    _other: "_WebSocketEnd"

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ContextOf, delay_s: Callable[[], float]) -> None:
        super().__init__(loop, context, delay_s)
        self._is_close_sent = False
        self._has_ended = False

    @property
    def is_open(self) -> bool:
        return not self._has_ended

    def disconnect(self, graceful: bool = True) -> None:
        """Close the connection; what was sent before still arrives."""
        if not self._has_ended:
            self._loop.call_soon(self.lose, context=self._context())
            self.deliver(self._other.lose)

    def lose(self) -> None:
        """Note that the connection has ended, and tell the listener once."""
        if not self._has_ended:
            self._has_ended = True
            self._tell_end()

    def die(self) -> None:
        """End the connection as the kernel does when this end's process is killed: only the other end is told."""
        if not self._has_ended:
            self._has_ended = True
            self.deliver(self._other.lose)

    def receive(self, frame: Frame) -> None:
        """Take a frame that has arrived."""
        if not self._has_ended:
            self._take(frame)

    def _transmit(self, frame: Frame) -> None:
        if not self._is_close_sent and not self._has_ended:
            self._is_close_sent = frame.opcode == CLOSE
            other = self._other
            self.deliver(lambda: other.receive(frame))

    def _take(self, frame: Frame) -> None:
        raise NotImplementedError

    def _tell_end(self) -> None:
        raise NotImplementedError


class GatewayEnd(_WebSocketEnd):
    """The gateway's end: a WebSocket of `services.gateway.websocket`, and the transport below it.

    `on_text` is called with each text frame that this end has received (True) or sends (False).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ContextOf,
        peer: str,
        delay_s: Callable[[], float],
        *,
        on_text: Callable[[bool, bytes], object] = lambda is_received, payload: None,
    ) -> None:
        super().__init__(loop, context, delay_s)
        self.transport: Any = self
        self._peer = peer
        self._on_text = on_text
        self._listener: Listener | None = None
        self._high = self._unread = 0
        self._is_paused = False

    def open(self, listener: Listener) -> None:
        """Give the frames to this listener from now on."""
        self._listener = listener
        listener.opened(self, self._peer, ())

    # --- WebSocket

    def send_text(self, payload: bytes) -> None:
        self._transmit(Frame(TEXT, payload))

    def send_ping(self, payload: bytes) -> None:
        self._transmit(Frame(PING, payload))

    def send_pong(self, payload: bytes) -> None:
        self._transmit(Frame(PONG, payload))

    def send_close(self, code: int | None, reason: bytes = b"") -> None:
        self._transmit(Frame(CLOSE, b"" if code is None else code.to_bytes(2, "big") + reason))

    def close(self) -> None:
        self.disconnect()

    abort = close

    # --- the transport below it

    def write(self, data: bytes) -> None:
        for payload in text_frames(data):
            self.send_text(payload)

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self._unread

    # ---

    def release(self) -> None:
        """Send what was held, and tell the listener that it may go on."""
        super().release()
        self._unread = 0
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._resume_writing, context=self._context())

    def _resume_writing(self) -> None:
        if self._listener is not None and not self._has_ended:
            self._listener.resume_writing()

    def _transmit(self, frame: Frame) -> None:
        if self._is_close_sent or self._has_ended:
            return
        if frame.opcode == TEXT:
            self._on_text(False, frame.payload)
        super()._transmit(frame)
        if self._held is not None:
            self._unread += len(frame.payload) * _LARGER
            if self._unread > self._high and not self._is_paused and self._listener is not None:
                self._is_paused = True
                self._listener.pause_writing()

    def _take(self, frame: Frame) -> None:
        if self._listener is not None:
            if frame.opcode == TEXT:
                self._on_text(True, frame.payload)
            self._listener.received(frame)

    def _tell_end(self) -> None:
        if self._listener is not None:
            self._listener.closed()


class _ReceivedFrame:
    """A frame with the attributes of picows' WSFrame."""

    __slots__ = ("_payload", "fin", "msg_type")

    def __init__(self, frame: Frame) -> None:
        self.msg_type = WSMsgType(frame.opcode)
        self.fin = frame.is_final
        self._payload = frame.payload

    @property
    def payload_size(self) -> int:
        return len(self._payload)

    def get_payload_as_bytes(self) -> bytes:
        return self._payload

    def get_close_code(self) -> WSCloseCode:
        code = close_code(self._payload)
        return WSCloseCode.NO_INFO if code is None else WSCloseCode(code)


class DeviceEnd(_WebSocketEnd):
    """The device's end, with the interface of picows' transport, which the Python SDK uses. It answers pings."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ContextOf, delay_s: Callable[[], float]) -> None:
        super().__init__(loop, context, delay_s)
        self._listener: WSListener | None = None
        self._disconnected: asyncio.Future[None] | None = None

    @property
    def is_close_frame_sent(self) -> bool:
        return self._is_close_sent

    def stop_reading(self) -> None:
        """Read nothing from now on, also not that the connection has ended, until `read_again`."""
        self._other.hold()

    def read_again(self) -> None:
        self._other.release()

    def open(self, listener: WSListener) -> None:
        """Give the frames to this listener from now on."""
        self._listener = listener
        listener.on_ws_connected(self)  # type: ignore[arg-type]

    def send(self, msg_type: WSMsgType, message: Any = b"", fin: bool = True) -> None:
        payload = message.encode() if isinstance(message, str) else bytes(message or b"")
        self._transmit(Frame(msg_type.value, payload, fin))

    def send_ping(self, message: Any = b"") -> None:
        self.send(WSMsgType.PING, message)

    def send_pong(self, message: Any = b"") -> None:
        self.send(WSMsgType.PONG, message)

    def send_close(self, code: WSCloseCode = WSCloseCode.NO_INFO, reason: Any = b"") -> None:
        self.send(WSMsgType.CLOSE, code.value.to_bytes(2, "big") + bytes(reason or b""))

    async def wait_disconnected(self) -> None:
        if not self._has_ended:
            if self._disconnected is None:
                self._disconnected = self._loop.create_future()
            await asyncio.shield(self._disconnected)

    def _take(self, frame: Frame) -> None:
        if frame.opcode == PING:
            self.send_pong(frame.payload)
        elif self._listener is not None:
            self._listener.on_ws_frame(self, _ReceivedFrame(frame))  # type: ignore[arg-type]

    def _tell_end(self) -> None:
        if self._listener is not None:
            self._listener.on_ws_disconnected(self)  # type: ignore[arg-type]
        if self._disconnected is not None:
            self._disconnected.set_result(None)


def text_frames(data: bytes) -> Iterator[bytes]:
    """Yield the payloads of complete frames of a server that have less than 64 KiB each."""
    position = 0
    while position < len(data):
        size, start = data[position + 1], position + 2
        if size == _SIZE_FOLLOWS:
            size, start = int.from_bytes(data[start : start + 2], "big"), start + 2
        yield data[start : start + size]
        position = start + size
