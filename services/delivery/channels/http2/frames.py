"""HTTP/2 frames and settings (RFC 9113): a reader for a server, writers for a client, and events for the owner."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME_BYTES = 16_384
"""Default SETTINGS_MAX_FRAME_SIZE: the limit for what the server sends, and a size every server accepts."""

MAX_BLOCK_BYTES = 65_536
MAX_WINDOW = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

_FRAME_HEADER = struct.Struct("!HBBBI")
_PRIORITY_BYTES = 5
_FIXED_LENGTHS = {PRIORITY: _PRIORITY_BYTES, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_STREAM_FRAMES = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, PUSH_PROMISE, CONTINUATION))
_CONNECTION_FRAMES = frozenset((SETTINGS, PING, GOAWAY))


class Http2Code(IntEnum):
    """Error codes (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ProtocolError(Exception):
    """The server broke the protocol; the connection must be closed (RFC 9113, section 5.4.1)."""

    def __init__(self, code: Http2Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Http2Frame(NamedTuple):
    """A frame; HEADERS include their CONTINUATIONs.

    `payload` is without padding and priority; `length` is with them, as flow control counts it.
    """

    kind: int
    flags: int
    stream: int
    payload: bytes
    length: int


class Http2FrameReader:
    """Cuts a server's bytes into frames. ProtocolError: a frame that no server may send."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._block: tuple[int, int, bytearray] | None = None

    def frames(self, data: bytes) -> Iterator[Http2Frame]:
        """Yield the complete frames in order; the rest is buffered until more bytes come."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= 9:
                high, low, kind, flags, stream = _FRAME_HEADER.unpack_from(buffer, at)
                length = high << 8 | low
                if length > MAX_FRAME_BYTES:
                    raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
                if len(buffer) - at < 9 + length:
                    break
                payload = bytes(buffer[at + 9 : at + 9 + length])
                at += 9 + length
                if frame := self._parsed(kind, flags, stream & MAX_WINDOW, payload):
                    yield frame
        finally:
            del buffer[:at]

    def _parsed(self, kind: int, flags: int, stream: int, payload: bytes) -> Http2Frame | None:
        """The frame, or None for incomplete headers and for frames of unknown kind, which are ignored."""
        if (self._block is not None) != (kind == CONTINUATION):
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "a header block is interrupted")
        _check_stream(kind, stream)
        length = len(payload)
        if length != _FIXED_LENGTHS.get(kind, length):
            raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, f"a frame of kind {kind} with {length} bytes")
        if kind in (HEADERS, CONTINUATION):
            return self._headers(kind, flags, stream, payload)
        if kind == DATA and flags & PADDED:
            payload = _unpadded(payload)
        elif kind == PUSH_PROMISE:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "a PUSH_PROMISE, although server push is disabled")
        return Http2Frame(kind, flags, stream, payload, length) if kind <= WINDOW_UPDATE else None

    def _headers(self, kind: int, flags: int, stream: int, payload: bytes) -> Http2Frame | None:
        if kind == HEADERS:
            payload = _unpadded(payload) if flags & PADDED else payload
            if flags & HAS_PRIORITY:
                if len(payload) < _PRIORITY_BYTES:
                    raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, "a truncated priority")
                payload = payload[_PRIORITY_BYTES:]
            if flags & END_HEADERS:
                return Http2Frame(HEADERS, flags, stream, payload, len(payload))
            self._block = (flags, stream, bytearray())
        assert self._block is not None
        first_flags, first_stream, block = self._block
        block += payload
        if stream != first_stream:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "a header block is interrupted")
        if len(block) > MAX_BLOCK_BYTES:
            raise ProtocolError(Http2Code.ENHANCE_YOUR_CALM, "a header block of more than 64 KiB")
        if not flags & END_HEADERS or kind == HEADERS:
            return None
        self._block = None
        return Http2Frame(HEADERS, first_flags | END_HEADERS, stream, bytes(block), len(block))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings_frame(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack("!HI", *item) for item in values.items()))


def rst_stream_frame(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def window_update_frame(stream: int, increment: int) -> bytes:
    """`stream` 0 means the connection's window."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def goaway_frame(code: int) -> bytes:
    """A client's GOAWAY; the last stream id is 0 because the server opens no streams."""
    return frame(GOAWAY, 0, 0, bytes(4) + code.to_bytes(4, "big"))


def header_frames(stream: int, block: bytes, end_stream: bool) -> bytes:
    """A header block of any length as HEADERS and CONTINUATION frames."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= MAX_FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    pieces = [block[at : at + MAX_FRAME_BYTES] for at in range(0, len(block), MAX_FRAME_BYTES)]
    frames = [frame(HEADERS, flags, stream, pieces[0])]
    frames += [frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]]
    return b"".join([*frames, frame(CONTINUATION, END_HEADERS, stream, pieces[-1])])


def _check_stream(kind: int, stream: int) -> None:
    if (kind in _STREAM_FRAMES and stream == 0) or (kind in _CONNECTION_FRAMES and stream != 0):
        raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"a frame of kind {kind} on stream {stream}")


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(Http2Code.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


# HTTP/2 settings (RFC 9113, section 6.5).

HEADER_TABLE_SIZE = 0x1
ENABLE_PUSH = 0x2
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6

_ENTRY_BYTES = 6
_MAX_FRAME_SIZE = (1 << 24) - 1


def parse_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield (identifier, value) in order. ProtocolError: the payload or a value is not one a server may send."""
    if len(payload) % _ENTRY_BYTES:
        raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, "truncated settings")
    for at in range(0, len(payload), _ENTRY_BYTES):
        identifier = int.from_bytes(payload[at : at + 2], "big")
        value = int.from_bytes(payload[at + 2 : at + _ENTRY_BYTES], "big")
        _check(identifier, value)
        yield identifier, value


def _check(identifier: int, value: int) -> None:
    if identifier == ENABLE_PUSH and value != 0:
        raise ProtocolError(Http2Code.PROTOCOL_ERROR, "a server must not enable server push")
    if identifier == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
        raise ProtocolError(Http2Code.FLOW_CONTROL_ERROR, "initial window size out of range")
    if identifier == MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value <= _MAX_FRAME_SIZE:
        raise ProtocolError(Http2Code.PROTOCOL_ERROR, "maximum frame size out of range")


# Events that a connection reports to its owner about the requests on it.


class Response(NamedTuple):
    """A complete response; `body` is cut at MAX_BODY_BYTES, `retry_after` is the header of that name."""

    stream: int
    status: int
    body: bytes
    retry_after: str = ""


class RequestFailed(NamedTuple):
    """The stream ended without a response. `processed` is False if the server certainly did not act on the request."""

    stream: int
    reason: str
    processed: bool


class GoAwayReceived(NamedTuple):
    """The server accepts no more requests on this connection; the remaining in-flight ones are still answered."""

    code: int
    text: str


Event = Response | RequestFailed | GoAwayReceived
