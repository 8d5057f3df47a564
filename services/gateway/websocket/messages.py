"""Text messages of frames (RFC 6455, 5.4 to 5.6), and the payload of close frames."""

from services.domain.device_protocol.close_codes import may_be_sent
from services.gateway.websocket.frames import (
    BINARY,
    CONTINUATION,
    INVALID_TEXT,
    MESSAGE_TOO_BIG,
    PROTOCOL_ERROR,
    UNSUPPORTED_DATA,
    Frame,
    Violation,
)


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
