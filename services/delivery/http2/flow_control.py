"""Flow control in both directions (RFC 9113, section 5.2)."""

from collections.abc import Iterable

from services.delivery.http2.frames import (
    DATA,
    END_STREAM,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    Code,
    ProtocolError,
    frame,
)
from services.delivery.http2.streams import Stream, StreamError

DEFAULT_WINDOW = 65_535
"""Initial window of a connection and of a stream, in bytes."""

RECEIVE_WINDOW = 1 << 20
"""Bytes of responses that the server may send ahead on the connection."""


class SendFlow:
    """Writes request bodies to `out` as far as the server's windows allow, and queues the rest."""

    def __init__(self, out: bytearray) -> None:
        self._out = out
        self._window = DEFAULT_WINDOW
        self._blocked: dict[int, Stream] = {}
        self.initial_window = DEFAULT_WINDOW
        """Send window of a new stream."""

    def send(self, number: int, stream: Stream) -> None:
        if stream.unsent and not self._write(number, stream):
            self._blocked[number] = stream

    def is_blocked(self, number: int) -> bool:
        """Whether a part of the stream's body is not written yet."""
        return number in self._blocked

    def forget(self, number: int) -> None:
        self._blocked.pop(number, None)

    def widen(self, increment: int) -> None:
        """Add to the connection's window."""
        self._window += increment
        if increment == 0 or self._window > MAX_WINDOW:
            raise ProtocolError(_window_error(increment), "invalid increment of the connection window")

    def widen_stream(self, stream: Stream, increment: int) -> None:
        stream.send_window += increment
        if increment == 0 or stream.send_window > MAX_WINDOW:
            raise StreamError(_window_error(increment), "invalid increment of a stream window")

    def change_initial_window(self, value: int, streams: Iterable[Stream]) -> None:
        """Apply a new INITIAL_WINDOW_SIZE to open streams and to later ones."""
        change, self.initial_window = value - self.initial_window, value
        for stream in streams:
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "initial window size overflows a stream window")

    def resume(self) -> None:
        """Write what the windows allow now, the oldest request first."""
        for number, stream in list(self._blocked.items()):
            if self._window <= 0:
                return
            if self._write(number, stream):
                del self._blocked[number]

    def _write(self, number: int, stream: Stream) -> bool:
        """Whether the whole body is written."""
        while stream.unsent and (size := min(self._window, stream.send_window, MAX_FRAME_BYTES)) > 0:
            piece, stream.unsent = stream.unsent[:size], stream.unsent[size:]
            self._window -= len(piece)
            stream.send_window -= len(piece)
            self._out += frame(DATA, 0 if stream.unsent else END_STREAM, number, piece)
        return not stream.unsent


class ReceiveWindow:
    """The connection's receive window, RECEIVE_WINDOW bytes wide, replenished when half of it is used."""

    def __init__(self) -> None:
        self._left = RECEIVE_WINDOW

    def consume(self, length: int) -> int:
        """Count received bytes; return the increment to grant the server, 0 if none is due."""
        self._left -= length
        if self._left >= RECEIVE_WINDOW // 2:
            return 0
        increment, self._left = RECEIVE_WINDOW - self._left, RECEIVE_WINDOW
        return increment


def _window_error(increment: int) -> Code:
    return Code.FLOW_CONTROL_ERROR if increment else Code.PROTOCOL_ERROR
