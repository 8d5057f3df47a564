"""One WebSocket on an accepted socket: the upgrade, and then frames for its listener.

A library does the same (picows, which the Python SDK uses), but takes twice the CPU time for a device that connects,
and 5 KB more of memory, which is most of what a device costs a gateway. `bench.registrations` measures both.
"""

import asyncio
import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from hashlib import sha1
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import httptools

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
from services.net.http.client_address import FORWARDED_HEADER

# The HTTP request that a WebSocket begins with (RFC 6455, 4.2), and the answers to it.

MAX_HEAD_BYTES = 16 * 1024
"""Upper bound of a request's head."""

_VERSION = b"13"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16


class UpgradeError(Exception):
    """A request that is refused with this HTTP status, and why, in words for people."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Upgrade(NamedTuple):
    """A request to open a WebSocket. `forwarded`: the values of its X-Forwarded-For headers, in order."""

    key: bytes
    subprotocols: Sequence[str]
    forwarded: Sequence[str]


class UpgradeReader:
    """Reads the head of one request, which must be for `path`, in as many pieces as it comes."""

    __slots__ = ("_headers", "_is_complete", "_parser", "_path", "_size", "_target")

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, list[bytes]] = {}
        self._target = b""
        self._size = 0
        self._is_complete = False

    def read(self, received: bytes) -> tuple[Upgrade, bytes] | None:
        """Return the request, and the bytes after its head, once the head is complete; None before.

        UpgradeError: it is no request that opens a WebSocket.
        """
        assert self._parser is not None
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserUpgrade as upgrade:
            (end,) = upgrade.args
            return self._upgrade(self._parser.get_method()), received[end:]
        except httptools.HttpParserError:
            if not self._is_complete:
                raise UpgradeError(HTTPStatus.BAD_REQUEST, "this is no HTTP request") from None
        if self._is_complete:
            raise UpgradeError(HTTPStatus.BAD_REQUEST, "this port serves only requests that upgrade to WebSocket")
        self._size += len(received)
        if self._size > MAX_HEAD_BYTES:
            raise UpgradeError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has {MAX_HEAD_BYTES} bytes at most")
        return None

    def release(self) -> None:
        """Release the parser, which refers to this reader, so that no garbage collector is needed for both."""
        self._parser = None

    # --- callbacks of the parser

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.setdefault(name.lower(), []).append(value)

    def on_headers_complete(self) -> None:
        self._is_complete = True

    # ---

    def _upgrade(self, method: bytes) -> Upgrade:
        """Return the request; UpgradeError when it opens no WebSocket of the supported version."""
        if self._target.partition(b"?")[0] != self._path:
            raise UpgradeError(HTTPStatus.NOT_FOUND, "this port serves no such path")
        if method != b"GET":
            raise UpgradeError(HTTPStatus.METHOD_NOT_ALLOWED, "a WebSocket begins with GET")
        if b"websocket" not in (each.lower() for each in self._list(b"upgrade")):
            raise UpgradeError(HTTPStatus.BAD_REQUEST, "Upgrade must be websocket")
        version = self._one(b"sec-websocket-version")
        if version != _VERSION:
            status = HTTPStatus.UPGRADE_REQUIRED if version.isdigit() else HTTPStatus.BAD_REQUEST
            raise UpgradeError(status, "Sec-WebSocket-Version must be 13")
        key = self._one(b"sec-websocket-key")
        if not _is_key(key):
            raise UpgradeError(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key must be 16 bytes in base64")
        return Upgrade(
            key,
            [each.decode("latin-1") for each in self._list(b"sec-websocket-protocol")],
            [each.decode("latin-1") for each in self._headers.get(FORWARDED_HEADER, ())],
        )

    def _one(self, name: bytes) -> bytes:
        """Return the value of a header that comes once; b"" when it is missing or repeated."""
        values = self._headers.get(name, ())
        return values[0].strip() if len(values) == 1 else b""

    def _list(self, name: bytes) -> list[bytes]:
        """Return the entries of a header that is a list, which may be divided among several lines."""
        return [entry.strip() for value in self._headers.get(name, ()) for entry in value.split(b",")]


def accepted(key: bytes, subprotocol: str | None) -> bytes:
    """Return the answer to a request with this key. `subprotocol`: the one of its subprotocols that is chosen."""
    proof = b64encode(sha1(key + _GUID, usedforsecurity=False).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    chosen = b"" if subprotocol is None else b"\r\nSec-WebSocket-Protocol: " + subprotocol.encode()
    return head + proof + chosen + b"\r\n\r\n"


def refused(error: UpgradeError) -> bytes:
    """Return the answer to a request that is refused."""
    status, body = error.status, f"{error}\n".encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    if status is HTTPStatus.UPGRADE_REQUIRED:
        head += f"Upgrade: websocket\r\nSec-WebSocket-Version: {_VERSION.decode()}\r\n"
    elif status is HTTPStatus.METHOD_NOT_ALLOWED:
        head += "Allow: GET\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _is_key(key: bytes) -> bool:
    try:
        return len(b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False


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


class WebSocketSettings(NamedTuple):
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
        self, endpoint: WebSocketSettings, peer: str, new_listener: Callable[[], Listener], ended: Callable[[], None]
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
