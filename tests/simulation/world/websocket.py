"""A WebSocket connection without a socket: two ends with the interface of picows' transport, and a network between."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from picows import WSCloseCode, WSListener, WSMsgType

from tests.simulation.kernel.network.ends import ConnectionEnd, ContextOf

_SIZE_FOLLOWS = 126


class Frame:
    """A received frame, with the attributes of picows' WSFrame."""

    __slots__ = ("_payload", "fin", "msg_type")
    rsv1 = rsv2 = rsv3 = False

    def __init__(self, msg_type: WSMsgType, payload: bytes, fin: bool = True) -> None:
        self.msg_type = msg_type
        self.fin = fin
        self._payload = payload

    @property
    def payload_size(self) -> int:
        return len(self._payload)

    def get_payload_as_bytes(self) -> bytes:
        return self._payload

    def get_close_code(self) -> WSCloseCode:
        return WSCloseCode(int.from_bytes(self._payload[:2], "big")) if self._payload else WSCloseCode.NO_INFO


class _Headers(dict[str, list[str]]):
    """The headers of an upgrade request or of its response: none."""

    def getall(self, name: str, default: Sequence[str]) -> Sequence[str]:
        return self.get(name, default)


class _Head:
    """An upgrade request, or its response."""

    def __init__(self) -> None:
        self.headers = _Headers()


class TransportEnd(ConnectionEnd):
    """One end of a WebSocket connection. `answers_pings`: as picows does for clients.

    `on_text` is called with each text frame that this end has received or sends.
    """

    _other: "TransportEnd"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ContextOf,
        peer: str,
        delay_s: Callable[[], float],
        *,
        answers_pings: bool = False,
        on_text: Callable[[bool, bytes], object] = lambda is_received, payload: None,
    ) -> None:
        super().__init__(loop, context, delay_s)
        self._on_text = on_text
        self._answers_pings = answers_pings
        self.is_close_frame_sent = False
        self.request, self.response = _Head(), _Head()
        self.underlying_transport = self
        self._peer = peer
        self._listener: WSListener | None = None
        self._is_disconnected = False
        self._disconnected: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        return not self._is_disconnected

    def open(self, listener: WSListener) -> None:
        """Give the frames to this listener from now on."""
        self._listener = listener
        listener.on_ws_connected(self)  # type: ignore[arg-type]

    # --- picows' WSTransport

    def send(self, msg_type: WSMsgType, message: Any = b"", fin: bool = True) -> None:
        if not self.is_close_frame_sent and not self._is_disconnected:
            payload = message.encode() if isinstance(message, str) else bytes(message or b"")
            self._transmit(Frame(WSMsgType(msg_type), payload, fin))

    def send_reuse_external_bytearray(self, msg_type: WSMsgType, buffer: bytearray, offset: int) -> None:
        self.send(msg_type, bytes(buffer[offset:]))

    def send_ping(self, message: Any = b"") -> None:
        self.send(WSMsgType.PING, message)

    def send_pong(self, message: Any = b"") -> None:
        self.send(WSMsgType.PONG, message)

    def send_close(self, close_code: WSCloseCode = WSCloseCode.NO_INFO, close_message: Any = b"") -> None:
        self.send(WSMsgType.CLOSE, close_code.value.to_bytes(2, "big") + bytes(close_message or b""))
        self.is_close_frame_sent = True

    def disconnect(self, graceful: bool = True) -> None:
        """Close the connection; what was sent before still arrives."""
        if not self._is_disconnected:
            self._loop.call_soon(self.lose, context=self._context())
            self.deliver(self._other.lose)

    async def wait_disconnected(self) -> None:
        if not self._is_disconnected:
            if self._disconnected is None:
                self._disconnected = self._loop.create_future()
            await asyncio.shield(self._disconnected)

    # --- asyncio's transport below it

    def write(self, data: bytes) -> None:
        for payload in text_frames(data):
            self.send(WSMsgType.TEXT, payload)

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing: the network takes whatever is sent."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return (self._peer, 0) if name == "peername" else None

    # --- the network

    def lose(self) -> None:
        """Note that the connection has ended, and tell the listener once."""
        if not self._is_disconnected:
            self._is_disconnected = True
            if self._listener is not None:
                self._listener.on_ws_disconnected(self)  # type: ignore[arg-type]
            if self._disconnected is not None:
                self._disconnected.set_result(None)

    def die(self) -> None:
        """End the connection as the kernel does when this end's process is killed: only the other end is told."""
        if not self._is_disconnected:
            self._is_disconnected = True
            self.deliver(self._other.lose)

    def _transmit(self, frame: Frame) -> None:
        other = self._other
        if frame.msg_type == WSMsgType.TEXT:
            self._on_text(False, frame.get_payload_as_bytes())
        self.deliver(lambda: other.receive(frame))

    def receive(self, frame: Frame) -> None:
        if self._is_disconnected:
            return
        if self._answers_pings and frame.msg_type == WSMsgType.PING:
            self.send_pong(frame.get_payload_as_bytes())
        elif self._listener is not None:
            if frame.msg_type == WSMsgType.TEXT:
                self._on_text(True, frame.get_payload_as_bytes())
            self._listener.on_ws_frame(self, frame)  # type: ignore[arg-type]


def text_frames(data: bytes) -> Iterator[bytes]:
    """Yield the payloads of complete, unmasked WebSocket frames of less than 64 KiB, as `with_header` makes them."""
    position = 0
    while position < len(data):
        size, start = data[position + 1], position + 2
        if size == _SIZE_FOLLOWS:
            size, start = int.from_bytes(data[start : start + 2], "big"), start + 2
        yield data[start : start + size]
        position = start + size
