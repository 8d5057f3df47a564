"""HTTP/2 frames (RFC 9113, sections 4 and 6): a reader for a server's frames, and writers for a client's."""

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


class Code(IntEnum):
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

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Frame(NamedTuple):
    """A frame; HEADERS include their CONTINUATIONs.

    `payload` is without padding and priority; `length` is with them, as flow control counts it.
    """

    kind: int
    flags: int
    stream: int
    payload: bytes
    length: int


class FrameReader:
    """Cuts a server's bytes into frames. ProtocolError: a frame that no server may send."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._block: tuple[int, int, bytearray] | None = None

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete frames in order; the rest is buffered until more bytes come."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= 9:
                high, low, kind, flags, stream = _FRAME_HEADER.unpack_from(buffer, at)
                length = high << 8 | low
                if length > MAX_FRAME_BYTES:
                    raise ProtocolError(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
                if len(buffer) - at < 9 + length:
                    break
                payload = bytes(buffer[at + 9 : at + 9 + length])
                at += 9 + length
                if frame := self._parsed(kind, flags, stream & MAX_WINDOW, payload):
                    yield frame
        finally:
            del buffer[:at]

    def _parsed(self, kind: int, flags: int, stream: int, payload: bytes) -> Frame | None:
        """The frame, or None for incomplete headers and for frames of unknown kind, which are ignored."""
        if (self._block is not None) != (kind == CONTINUATION):
            raise ProtocolError(Code.PROTOCOL_ERROR, "a header block is interrupted")
        _check_stream(kind, stream)
        length = len(payload)
        if length != _FIXED_LENGTHS.get(kind, length):
            raise ProtocolError(Code.FRAME_SIZE_ERROR, f"a frame of kind {kind} with {length} bytes")
        if kind in (HEADERS, CONTINUATION):
            return self._headers(kind, flags, stream, payload)
        if kind == DATA and flags & PADDED:
            payload = _unpadded(payload)
        elif kind == PUSH_PROMISE:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a PUSH_PROMISE, although server push is disabled")
        return Frame(kind, flags, stream, payload, length) if kind <= WINDOW_UPDATE else None

    def _headers(self, kind: int, flags: int, stream: int, payload: bytes) -> Frame | None:
        if kind == HEADERS:
            payload = _unpadded(payload) if flags & PADDED else payload
            if flags & HAS_PRIORITY:
                if len(payload) < _PRIORITY_BYTES:
                    raise ProtocolError(Code.FRAME_SIZE_ERROR, "a truncated priority")
                payload = payload[_PRIORITY_BYTES:]
            if flags & END_HEADERS:
                return Frame(HEADERS, flags, stream, payload, len(payload))
            self._block = (flags, stream, bytearray())
        assert self._block is not None
        first_flags, first_stream, block = self._block
        block += payload
        if stream != first_stream:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a header block is interrupted")
        if len(block) > MAX_BLOCK_BYTES:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "a header block of more than 64 KiB")
        if not flags & END_HEADERS or kind == HEADERS:
            return None
        self._block = None
        return Frame(HEADERS, first_flags | END_HEADERS, stream, bytes(block), len(block))


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
        raise ProtocolError(Code.PROTOCOL_ERROR, f"a frame of kind {kind} on stream {stream}")


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(Code.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
