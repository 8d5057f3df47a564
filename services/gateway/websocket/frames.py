"""WebSocket frames (RFC 6455, 5.2): a reader that unmasks a device's frames, and writers of the server's."""

from struct import pack
from typing import NamedTuple

from services.domain.device_protocol.answers import may_be_sent

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
"""Opcodes; those from CLOSE on are of control frames."""

PROTOCOL_ERROR, UNSUPPORTED_DATA, INVALID_TEXT = 1002, 1003, 1007
POLICY_VIOLATION, MESSAGE_TOO_BIG = 1008, 1009
"""Close codes (RFC 6455, 7.4.1)."""

MAX_CONTROL_BYTES = 125
"""Upper bound of the payload of a control frame."""

_OPCODES = frozenset([CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG])
_FINAL, _RESERVED_BITS, _OPCODE = 0x80, 0x70, 0x0F
_MASKED, _SIZE = 0x80, 0x7F
_SIZE_IN_2_BYTES, _SIZE_IN_8_BYTES = 126, 127
_MASK_BYTES = 4


class Frame(NamedTuple):
    """A frame that a device has sent. `is_final` is False for all fragments of a message but the last."""

    opcode: int
    payload: bytes
    is_final: bool = True


class Violation(NamedTuple):
    """A frame that breaks the protocol: the close code for it, and what is wrong, in words for people."""

    code: int
    reason: str


def encode(opcode: int, payload: bytes) -> bytes:
    """Return a frame of the server: unfragmented, and unmasked."""
    size = len(payload)
    if size < _SIZE_IN_2_BYTES:
        header = pack("!BB", _FINAL | opcode, size)
    elif size < 1 << 16:
        header = pack("!BBH", _FINAL | opcode, _SIZE_IN_2_BYTES, size)
    else:
        header = pack("!BBQ", _FINAL | opcode, _SIZE_IN_8_BYTES, size)
    return header + payload


def encode_close(code: int, reason: bytes) -> bytes:
    """Return a close frame with this code and reason, UTF-8 of at most 123 bytes."""
    return encode(CLOSE, pack("!H", code) + reason)


class FrameReader:
    """Splits what a device sends into frames.

    A frame that breaks the protocol is passed over, however long it is, and a Violation stands in its place. So what
    follows it, such as the device's close frame, is read as usual. At most one frame of `max_bytes` waits in memory.
    """

    __slots__ = ("_max_bytes", "_passed_over", "_rest")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._passed_over = 0

    def read(self, received: bytes) -> list[Frame | Violation]:
        """Return the frames that are complete now, and a Violation in place of each that breaks the protocol."""
        data = self._rest + received if self._rest else received
        found: list[Frame | Violation] = []
        start, end = self._pass_over(0, len(data)), len(data)
        while end - start >= 2:
            first, size, body = data[start], data[start + 1] & _SIZE, start + 2
            width = 0
            if size >= _SIZE_IN_2_BYTES:
                width = 2 if size == _SIZE_IN_2_BYTES else 8
                body += width
                if body > end:
                    break
                size = int.from_bytes(data[start + 2 : body], "big")
            is_masked = data[start + 1] >= _MASKED
            violation = self._violation(first, is_masked, size, width)
            if violation is not None:
                found.append(violation)
                self._passed_over = size + (_MASK_BYTES if is_masked else 0)
                start = self._pass_over(body, end)
                continue
            after = body + _MASK_BYTES + size
            if after > end:
                break
            found.append(Frame(first & _OPCODE, _unmasked(data, body, size), first >= _FINAL))
            start = after
        self._rest = data[start:]
        return found

    def _pass_over(self, start: int, end: int) -> int:
        """Pass over bytes of a frame that breaks the protocol; return the position after them."""
        passed = min(self._passed_over, end - start)
        self._passed_over -= passed
        return start + passed

    def _violation(self, first: int, is_masked: bool, size: int, width: int) -> Violation | None:
        """Return what is wrong with a frame of this first byte and size, which was written in `width` further bytes."""
        if first & _RESERVED_BITS:
            return Violation(PROTOCOL_ERROR, "reserved bits are set")
        opcode = first & _OPCODE
        if opcode not in _OPCODES:
            return Violation(PROTOCOL_ERROR, f"the opcode {opcode} is reserved")
        if not is_masked:
            return Violation(PROTOCOL_ERROR, "a device's frame must be masked")
        if width and (size < _SIZE_IN_2_BYTES or (width == 8 and (size < 1 << 16 or size >= 1 << 63))):
            return Violation(PROTOCOL_ERROR, "the length is not in its shortest form")
        if opcode >= CLOSE and (first < _FINAL or size > MAX_CONTROL_BYTES):
            return Violation(PROTOCOL_ERROR, f"a control frame has one fragment of at most {MAX_CONTROL_BYTES} bytes")
        if size > self._max_bytes:
            return Violation(MESSAGE_TOO_BIG, f"a frame has {self._max_bytes} bytes at most")
        return None


def _unmasked(data: bytes, start: int, size: int) -> bytes:
    """Return the payload of `size` bytes after the mask at `start`, unmasked by one operation on large integers."""
    payload = start + _MASK_BYTES
    mask = data[start:payload] * (size // _MASK_BYTES + 1)
    masked = int.from_bytes(data[payload : payload + size], "little")
    return (masked ^ int.from_bytes(mask[:size], "little")).to_bytes(size, "little")


# Text messages of frames (RFC 6455, 5.4 to 5.6), and the payload of close frames.


class MessageAssembler:
    """Joins the fragments of text messages of at most `max_bytes` each."""

    __slots__ = ("_fragments", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._fragments: bytearray | None = None

    def add(self, frame: Frame) -> bytes | Violation | None:
        """Return the message that this frame completes, None while fragments are missing, or what is wrong."""
        opcode, payload, is_final = frame
        if (opcode == CONTINUATION) != (self._fragments is not None):
            return Violation(PROTOCOL_ERROR, "fragments out of order")
        if opcode == BINARY:
            return Violation(UNSUPPORTED_DATA, "text frames only")
        if self._fragments is not None or not is_final:
            self._fragments = (self._fragments or bytearray()) + payload
            if len(self._fragments) > self._max_bytes:
                return Violation(MESSAGE_TOO_BIG, f"a message has {self._max_bytes} bytes at most")
            if not is_final:
                return None
            payload, self._fragments = bytes(self._fragments), None
        return payload if _is_text(payload) else Violation(INVALID_TEXT, "text must be UTF-8")


def close_violation(payload: bytes) -> Violation | None:
    """Return what is wrong with the payload of a close frame; None for a right one."""
    if payload and not may_be_sent(int.from_bytes(payload[:2], "big")):
        return Violation(PROTOCOL_ERROR, "this close code must not be sent")
    return None if _is_text(payload[2:]) else Violation(INVALID_TEXT, "the reason of a close frame must be UTF-8")


def close_code(payload: bytes) -> int | None:
    """Return the code in the payload of a close frame; None: it has none."""
    return int.from_bytes(payload[:2], "big") if payload else None


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
