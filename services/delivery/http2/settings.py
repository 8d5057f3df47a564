"""HTTP/2 settings (RFC 9113, section 6.5)."""

from collections.abc import Iterator

from services.delivery.http2.frames import MAX_FRAME_BYTES, MAX_WINDOW, Code, ProtocolError

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
        raise ProtocolError(Code.FRAME_SIZE_ERROR, "truncated settings")
    for at in range(0, len(payload), _ENTRY_BYTES):
        identifier = int.from_bytes(payload[at : at + 2], "big")
        value = int.from_bytes(payload[at + 2 : at + _ENTRY_BYTES], "big")
        _check(identifier, value)
        yield identifier, value


def _check(identifier: int, value: int) -> None:
    if identifier == ENABLE_PUSH and value != 0:
        raise ProtocolError(Code.PROTOCOL_ERROR, "a server must not enable server push")
    if identifier == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
        raise ProtocolError(Code.FLOW_CONTROL_ERROR, "initial window size out of range")
    if identifier == MAX_FRAME_SIZE and not MAX_FRAME_BYTES <= value <= _MAX_FRAME_SIZE:
        raise ProtocolError(Code.PROTOCOL_ERROR, "maximum frame size out of range")
