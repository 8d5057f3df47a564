"""One WebSocket on an accepted socket: the upgrade, and then frames for its listener.

A library does the same (picows, which the Python SDK uses), but takes twice the CPU time for a device that connects,
and 5 KB more of memory, which is most of what a device costs a gateway. `bench.registrations` measures both.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

from services.gateway.websocket.frames import (
    CLOSE,
    PING,
    PONG,
    TEXT,
    Frame,
    FrameReader,
    Violation,
    encode,
    encode_close,
)
from services.gateway.websocket.upgrade import UpgradeError, UpgradeReader, accepted, refused


class WebSocket(Protocol):
    """A WebSocket as its listener uses it. After a close frame, and after the end, nothing is sent."""

    transport: asyncio.Transport
    """The transport of bytes below, to which complete frames may be written."""

    def send_text(self, payload: bytes) -> None: ...

    def send_ping(self, payload: bytes) -> None: ...

    def send_pong(self, payload: bytes) -> None: ...

    def send_close(self, code: int | None, reason: bytes = b"") -> None:
        """Send the close frame. `code`: None for one without a code."""

    def close(self) -> None:
        """Close the socket once what was sent has gone out."""

    def abort(self) -> None:
        """Close the socket at once."""


class Listener(Protocol):
    """Receives the events of a WebSocket: first `opened`, then the frames, last `closed`."""

    def opened(self, socket: WebSocket, peer: str, forwarded: Sequence[str]) -> None:
        """The WebSocket is open. `forwarded`: the values of the X-Forwarded-For headers of its request."""

    def received(self, frame: Frame) -> None:
        """A frame came."""

    def violated(self, violation: Violation) -> None:
        """A frame broke the protocol; the listener sends the close frame."""

    def closed(self) -> None:
        """The socket has closed."""

    def pause_writing(self) -> None:
        """More bytes wait to be sent than the transport's upper bound."""

    def resume_writing(self) -> None:
        """The bytes that wait to be sent are down to the transport's lower bound."""


class Endpoint(NamedTuple):
    """The settings that all WebSockets of a server share. `upgrade_s`: the deadline of the request after the accept."""

    path: bytes
    subprotocol: str
    max_frame_bytes: int
    upgrade_s: float


class WebSocketProtocol(asyncio.Protocol):
    """The server's end of one WebSocket: an asyncio protocol, from the accepted socket on.

    `new_listener` is called once its request is accepted; `ended` when the socket has closed, also without a request.
    """

    __slots__ = (
        "_deadline",
        "_ended",
        "_endpoint",
        "_frames",
        "_is_close_sent",
        "_listener",
        "_new_listener",
        "_peer",
        "_upgrade",
        "is_made",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(
        self, endpoint: Endpoint, peer: str, new_listener: Callable[[], Listener], ended: Callable[[], None]
    ) -> None:
        """`peer`: the address of the other end, without a port."""
        self._endpoint = endpoint
        self._peer = peer
        self._new_listener: Callable[[], Listener] | None = new_listener
        self._ended = ended
        self._upgrade: UpgradeReader | None = None
        self._frames: FrameReader | None = None
        self._listener: Listener | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_close_sent = False
        self.is_made = False
        """Whether the transport exists: `ended` will be called."""

    # --- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_made = True
        self._upgrade = UpgradeReader(self._endpoint.path)
        self._deadline = asyncio.get_running_loop().call_later(self._endpoint.upgrade_s, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._upgrade is not None:
            data = self._read_upgrade(self._upgrade, data)
        if self._frames is None or self._listener is None or not data:
            return
        for found in self._frames.read(data):
            if isinstance(found, Frame):
                self._listener.received(found)
            else:
                self._listener.violated(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_upgrade()
        listener, self._listener = self._listener, None
        self._ended()
        if listener is not None:
            listener.closed()

    def pause_writing(self) -> None:
        if self._listener is not None:
            self._listener.pause_writing()

    def resume_writing(self) -> None:
        if self._listener is not None:
            self._listener.resume_writing()

    # --- the WebSocket of the listener

    def send_text(self, payload: bytes) -> None:
        self._send(encode(TEXT, payload))

    def send_ping(self, payload: bytes) -> None:
        self._send(encode(PING, payload))

    def send_pong(self, payload: bytes) -> None:
        self._send(encode(PONG, payload))

    def send_close(self, code: int | None, reason: bytes = b"") -> None:
        self._send(encode(CLOSE, b"") if code is None else encode_close(code, reason))
        self._is_close_sent = True

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def _send(self, frame: bytes) -> None:
        if not self._is_close_sent and not self.transport.is_closing():
            self.transport.write(frame)

    # --- the upgrade

    def _read_upgrade(self, upgrade: UpgradeReader, data: bytes) -> bytes:
        """Answer the request once it is complete; return what came after it."""
        try:
            found = upgrade.read(data)
        except UpgradeError as error:
            self._end_upgrade()
            self.transport.write(refused(error))
            self.transport.close()
            return b""
        if found is None:
            return b""
        request, rest = found
        assert self._new_listener is not None
        listener, peer = self._new_listener(), self._peer
        self._end_upgrade()
        subprotocol = self._endpoint.subprotocol
        self.transport.write(accepted(request.key, subprotocol if subprotocol in request.subprotocols else None))
        self._frames = FrameReader(self._endpoint.max_frame_bytes)
        self._listener = listener
        listener.opened(self, peer, request.forwarded)
        return rest

    def _end_upgrade(self) -> None:
        """Free the objects that only the upgrade needs."""
        if self._upgrade is not None and self._deadline is not None:
            self._upgrade.release()
            self._deadline.cancel()
        self._upgrade = self._deadline = self._new_listener = None
        self._peer = ""
