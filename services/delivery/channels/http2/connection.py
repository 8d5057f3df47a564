"""A client's side of an HTTP/2 connection (RFC 9113), its streams and flow control, without input or output.

It supports what push services need: small POST requests and small responses. Server push is refused, response
bodies are cut at MAX_BODY_BYTES, and requests never use the dynamic header table.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.delivery.channels.http2.frames import (
    ACK,
    DATA,
    ENABLE_PUSH,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_BYTES,
    MAX_HEADER_LIST_SIZE,
    MAX_WINDOW,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Event,
    GoAwayReceived,
    Http2Code,
    Http2Frame,
    Http2FrameReader,
    ProtocolError,
    RequestFailed,
    Response,
    frame,
    goaway_frame,
    header_frames,
    parse_settings,
    rst_stream_frame,
    settings_frame,
    window_update_frame,
)
from services.delivery.channels.http2.headers import MAX_LIST_BYTES, NO_TABLE, HeaderError, HeadReader

# One request and its response on a stream (RFC 9113, section 8.1).

MAX_BODY_BYTES = 16_384
"""Limit of a response body; the rest is not read."""


class StreamError(Exception):
    """The server broke the protocol on one stream; only the stream is reset (RFC 9113, section 5.4.2)."""

    def __init__(self, code: Http2Code, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Stream:
    """A request in flight. `send_window`: bytes of the body the server accepts now; `unsent`: the rest of the body."""

    send_window: int
    unsent: bytes = b""
    status: int = 0
    retry_after: str = ""
    body: bytearray = field(default_factory=bytearray)

    def receive_headers(self, status: int | None, retry_after: str, end_stream: bool) -> None:
        """Take over a header block: informational, the response's, or trailers."""
        if self.status:
            if status is not None or not end_stream:
                raise StreamError(Http2Code.PROTOCOL_ERROR, "headers within a body")
        elif status is None or not _is_valid(status, end_stream):
            raise StreamError(Http2Code.PROTOCOL_ERROR, "headers without a valid status")
        elif status >= 200:
            self.status, self.retry_after = status, retry_after

    def receive_data(self, data: bytes) -> bool:
        """Append to the body; returns True if it is longer than MAX_BODY_BYTES, so that the rest is not needed."""
        if not self.status:
            raise StreamError(Http2Code.PROTOCOL_ERROR, "a body without headers")
        self.body += data
        return len(self.body) > MAX_BODY_BYTES


def _is_valid(status: int, end_stream: bool) -> bool:
    """Return whether the status may be sent: 101 is not used in HTTP/2, and an informational one ends no stream."""
    return status != 101 and 100 <= status <= 999 and not (status < 200 and end_stream)


# Flow control in both directions (RFC 9113, section 5.2).

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
                raise ProtocolError(Http2Code.FLOW_CONTROL_ERROR, "initial window size overflows a stream window")

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


def _window_error(increment: int) -> Http2Code:
    return Http2Code.FLOW_CONTROL_ERROR if increment else Http2Code.PROTOCOL_ERROR


_MAX_STREAM_ID = 2**31 - 1
_PING_PAYLOAD = b"carillon"


class ClientConnection:
    """The client's state of one connection. `out` collects the bytes to write; the caller writes and clears it."""

    def __init__(self) -> None:
        self.out = bytearray(PREFACE)
        self.out += settings_frame({HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, MAX_HEADER_LIST_SIZE: MAX_LIST_BYTES})
        self.out += window_update_frame(0, RECEIVE_WINDOW - DEFAULT_WINDOW)
        self.max_streams = 1
        self.goaway = False
        self._first_block_prefix = NO_TABLE
        self._reader = Http2FrameReader()
        self._heads = HeadReader()
        self._streams: dict[int, Stream] = {}
        self._send_flow = SendFlow(self.out)
        self._receive_window = ReceiveWindow()
        self._next_id = 1
        self._has_settings = False
        self._unanswered_pings = 0
        self._events: list[Event] = []
        self._handlers: dict[int, Callable[[Http2Frame], None]] = {
            DATA: self._on_data,
            HEADERS: self._on_headers,
            RST_STREAM: self._on_rst_stream,
            SETTINGS: self._on_settings,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            WINDOW_UPDATE: self._on_window_update,
        }

    # --- requests

    @property
    def open_streams(self) -> int:
        """Requests without a response."""
        return len(self._streams)

    @property
    def free_streams(self) -> int:
        """Number of requests that may be made now; 0 before the server's settings and after GOAWAY."""
        if self.goaway or not self._has_settings:
            return 0
        return max(0, min(self.max_streams - len(self._streams), (_MAX_STREAM_ID - self._next_id) // 2 + 1))

    @property
    def unanswered_pings(self) -> int:
        return self._unanswered_pings

    def request(self, block: bytes, body: bytes) -> int:
        """Start a request with an encoded header block; return its stream id. ValueError: no stream is free."""
        if self.free_streams <= 0:
            raise ValueError("no stream is free")
        number, self._next_id = self._next_id, self._next_id + 2
        self.goaway = self._next_id > _MAX_STREAM_ID
        self.out += header_frames(number, self._first_block_prefix + block, not body)
        self._first_block_prefix = b""
        stream = self._streams[number] = Stream(self._send_flow.initial_window, body)
        self._send_flow.send(number, stream)
        return number

    def is_sent(self, stream: int) -> bool:
        """Whether the whole request is written; the server cannot have acted on one that is not."""
        return not self._send_flow.is_blocked(stream)

    def cancel(self, stream: int) -> None:
        """Reset a stream; its response is ignored."""
        if self._forget(stream):
            self.out += rst_stream_frame(stream, Http2Code.CANCEL)

    def ping(self) -> None:
        self._unanswered_pings += 1
        self.out += frame(PING, 0, 0, _PING_PAYLOAD)

    def send_goaway(self, code: Http2Code = Http2Code.NO_ERROR) -> None:
        self.out += goaway_frame(code)

    # --- frames from the server

    def receive(self, data: bytes) -> list[Event]:
        """Process bytes from the server. ProtocolError: the connection is over, and `out` ends with GOAWAY."""
        try:
            for received in self._reader.frames(data):
                self._check_preface(received)
                if handler := self._handlers.get(received.kind):
                    self._handle(handler, received)
        except ProtocolError as error:
            self.send_goaway(error.code)
            raise
        events, self._events = self._events, []
        return events

    def _check_preface(self, received: Http2Frame) -> None:
        if not self._has_settings and (received.kind != SETTINGS or received.flags & ACK):
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, "the server's first frame is not SETTINGS")

    def _handle(self, handler: Callable[[Http2Frame], None], received: Http2Frame) -> None:
        try:
            handler(received)
        except StreamError as error:
            self._forget(received.stream)
            self.out += rst_stream_frame(received.stream, error.code)
            self._events.append(RequestFailed(received.stream, str(error), True))

    def _on_data(self, received: Http2Frame) -> None:
        if increment := self._receive_window.consume(received.length):
            self.out += window_update_frame(0, increment)
        stream = self._stream_of(received)
        if stream is None:
            return
        is_too_long = stream.receive_data(received.payload)
        if received.flags & END_STREAM:
            self._complete(received.stream, stream)
        elif is_too_long:
            self.out += rst_stream_frame(received.stream, Http2Code.CANCEL)
            self._complete(received.stream, stream)

    def _on_headers(self, received: Http2Frame) -> None:
        try:
            status, retry_after = self._heads.head(received.payload)
        except HeaderError as error:
            raise ProtocolError(Http2Code.COMPRESSION_ERROR, str(error)) from error
        stream = self._stream_of(received)
        if stream is None:
            return
        end_stream = bool(received.flags & END_STREAM)
        stream.receive_headers(status, retry_after, end_stream)
        if end_stream:
            self._complete(received.stream, stream)

    def _on_rst_stream(self, received: Http2Frame) -> None:
        code = int.from_bytes(received.payload, "big")
        if self._stream_of(received) is not None:
            self._forget(received.stream)
            processed = code != Http2Code.REFUSED_STREAM
            self._events.append(RequestFailed(received.stream, f"reset: {_name(code)}", processed))

    def _on_settings(self, received: Http2Frame) -> None:
        if received.flags & ACK:
            if received.payload:
                raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, "an acknowledgement of settings with a payload")
            return
        if not self._has_settings:
            # RFC 9113, section 6.5.2: without MAX_CONCURRENT_STREAMS there is no limit.
            self._has_settings, self.max_streams = True, MAX_WINDOW
        for identifier, value in parse_settings(received.payload):
            if identifier == MAX_CONCURRENT_STREAMS:
                self.max_streams = value
            elif identifier == INITIAL_WINDOW_SIZE:
                self._send_flow.change_initial_window(value, self._streams.values())
        self.out += frame(SETTINGS, ACK, 0)
        self._send_flow.resume()

    def _on_ping(self, received: Http2Frame) -> None:
        if received.flags & ACK:
            self._unanswered_pings = 0
        else:
            self.out += frame(PING, ACK, 0, received.payload)

    def _on_goaway(self, received: Http2Frame) -> None:
        if len(received.payload) < 8:
            raise ProtocolError(Http2Code.FRAME_SIZE_ERROR, "a truncated GOAWAY")
        last = int.from_bytes(received.payload[:4], "big") & MAX_WINDOW
        code = int.from_bytes(received.payload[4:8], "big")
        self.goaway = True
        for number in [number for number in self._streams if number > last]:
            self._forget(number)
            self._events.append(RequestFailed(number, "the server sent GOAWAY before the request", False))
        self._events.append(GoAwayReceived(code, received.payload[8:200].decode(errors="replace")))

    def _on_window_update(self, received: Http2Frame) -> None:
        increment = int.from_bytes(received.payload, "big") & MAX_WINDOW
        if received.stream == 0:
            self._send_flow.widen(increment)
        elif (stream := self._stream_of(received)) is not None:
            self._send_flow.widen_stream(stream, increment)
        self._send_flow.resume()

    # --- streams

    def _stream_of(self, received: Http2Frame) -> Stream | None:
        """The frame's stream, or None if it is closed. ProtocolError: it was never opened."""
        if received.stream >= self._next_id or received.stream % 2 == 0:
            raise ProtocolError(Http2Code.PROTOCOL_ERROR, f"stream {received.stream} was never opened")
        return self._streams.get(received.stream)

    def _complete(self, number: int, stream: Stream) -> None:
        if stream.unsent:  # the response came before the request was written
            self.out += rst_stream_frame(number, Http2Code.NO_ERROR)
        self._forget(number)
        self._events.append(Response(number, stream.status, bytes(stream.body[:MAX_BODY_BYTES]), stream.retry_after))

    def _forget(self, number: int) -> bool:
        self._send_flow.forget(number)
        return self._streams.pop(number, None) is not None


def _name(code: int) -> str:
    return Http2Code(code).name if code in Http2Code._value2member_map_ else f"error {code}"
