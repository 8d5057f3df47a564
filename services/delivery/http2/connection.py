"""An HTTP/2 client's end of one connection (RFC 9113) without any input or output of its own.

It sends small POST requests and takes small answers, which is all that Apple's push service is about. What it is not
asked to do it refuses: no server push, no large bodies, no dynamic table for what it sends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from services.delivery.http2.frames import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    Frame,
    FrameReader,
    ProtocolError,
    frame,
    header_frames,
    number_frame,
    settings_frame,
)
from services.delivery.http2.headers import MAX_LIST_BYTES, NO_TABLE, HeaderError, StatusReader

MAX_BODY_BYTES = 16_384
"""How much of an answer is read."""

_DEFAULT_WINDOW = 65_535
_CONNECTION_WINDOW = 1 << 20
_MAX_STREAM_ID = 2**31 - 1


class Answer(NamedTuple):
    """A complete response; of a longer body the first MAX_BODY_BYTES."""

    stream: int
    status: int
    body: bytes


class Unanswered(NamedTuple):
    """The stream ended without a response. `processed` False: the peer says that it did nothing with the request."""

    stream: int
    reason: str
    processed: bool


class GoneAway(NamedTuple):
    """The peer takes no more requests on this connection; those up to here are answered still."""

    code: int
    text: str


Event = Answer | Unanswered | GoneAway


@dataclass(slots=True)
class _Stream:
    window: int
    rest: bytes = b""
    status: int = 0
    body: bytearray = field(default_factory=bytearray)


class ClientConnection:
    """`out` gathers what is to be written; the caller takes it and clears it."""

    def __init__(self) -> None:
        self.out = bytearray(PREFACE)
        self.out += settings_frame({0x1: 0, 0x2: 0, 0x6: MAX_LIST_BYTES})
        self.out += number_frame(WINDOW_UPDATE, 0, _CONNECTION_WINDOW - _DEFAULT_WINDOW)
        self.max_streams = 1
        self.gone = False
        self._unsaid = NO_TABLE
        self._reader = FrameReader()
        self._statuses = StatusReader()
        self._streams: dict[int, _Stream] = {}
        self._blocked: dict[int, _Stream] = {}
        self._next_id = 1
        self._window = _DEFAULT_WINDOW
        self._first_window = _DEFAULT_WINDOW
        self._room = _CONNECTION_WINDOW
        self._greeted = False
        self._pings = 0
        self._events: list[Event] = []
        self._takers: dict[int, Callable[[Frame], None]] = {
            DATA: self._take_data,
            HEADERS: self._take_headers,
            RST_STREAM: self._take_reset,
            SETTINGS: self._take_settings,
            PING: self._take_ping,
            GOAWAY: self._take_goaway,
            WINDOW_UPDATE: self._take_window,
        }

    # --- what the client does

    @property
    def open(self) -> int:
        """Requests without an answer."""
        return len(self._streams)

    @property
    def free(self) -> int:
        """How many requests may be made now: none before the peer's settings, and what these allow after them."""
        if self.gone or not self._greeted:
            return 0
        return max(0, self.max_streams - len(self._streams))

    @property
    def pings_out(self) -> int:
        """Pings without an answer."""
        return self._pings

    def request(self, block: bytes, body: bytes) -> int:
        """Begin a request with an encoded header block; the stream's id. Only while `free`."""
        if self.free <= 0:
            raise ValueError("no stream is free")
        number, self._next_id = self._next_id, self._next_id + 2
        self.gone = self._next_id > _MAX_STREAM_ID
        self.out += header_frames(number, self._unsaid + block, not body)
        self._unsaid = b""
        stream = self._streams[number] = _Stream(self._first_window, body)
        if body and not self._push_on(number, stream):
            self._blocked[number] = stream
        return number

    def is_sent(self, stream: int) -> bool:
        """Whether the whole request was written; one that was not cannot have been acted upon."""
        return stream not in self._blocked

    def cancel(self, stream: int) -> None:
        """Give a request up; an answer that comes later is ignored."""
        if self._drop(stream):
            self.out += number_frame(RST_STREAM, stream, Code.CANCEL)

    def ping(self) -> None:
        self._pings += 1
        self.out += frame(PING, 0, 0, b"carillon")

    def say_goodbye(self, code: Code = Code.NO_ERROR) -> None:
        self.out += frame(GOAWAY, 0, 0, bytes(4) + code.to_bytes(4, "big"))

    # --- what the peer says

    def receive(self, data: bytes) -> list[Event]:
        """What the bytes mean for the requests. ProtocolError: `out` has the goodbye, and the connection is over."""
        try:
            for taken in self._reader.frames(data):
                self._check_greeting(taken)
                if taker := self._takers.get(taken.kind):
                    taker(taken)
        except ProtocolError as error:
            self.say_goodbye(error.code)
            raise
        events, self._events = self._events, []
        return events

    def _check_greeting(self, taken: Frame) -> None:
        if not self._greeted and (taken.kind != SETTINGS or taken.flags & ACK):
            raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame holds no settings")

    def _take_data(self, taken: Frame) -> None:
        self._room -= taken.length
        if self._room < _CONNECTION_WINDOW // 2:
            self.out += number_frame(WINDOW_UPDATE, 0, _CONNECTION_WINDOW - self._room)
            self._room = _CONNECTION_WINDOW
        stream = self._known(taken)
        if stream is None:
            return
        stream.body += taken.payload
        if not stream.status:
            self._break(taken.stream, "a body before its headers")
        elif taken.flags & END_STREAM:
            self._answer(taken.stream, stream)
        elif len(stream.body) > MAX_BODY_BYTES:
            self.out += number_frame(RST_STREAM, taken.stream, Code.CANCEL)
            self._answer(taken.stream, stream)

    def _take_headers(self, taken: Frame) -> None:
        try:
            status = self._statuses.status(taken.payload)
        except HeaderError as error:
            raise ProtocolError(Code.COMPRESSION_ERROR, str(error)) from error
        stream = self._known(taken)
        if stream is None:
            return
        ends = bool(taken.flags & END_STREAM)
        if stream.status:  # trailers
            if status is None and ends:
                self._answer(taken.stream, stream)
            else:
                self._break(taken.stream, "headers in the midst of a body")
        elif status is None or status == 101 or not 100 <= status <= 999 or (status < 200 and ends):
            self._break(taken.stream, "headers without a status")
        elif status >= 200:
            stream.status = status
            if ends:
                self._answer(taken.stream, stream)

    def _take_reset(self, taken: Frame) -> None:
        code = int.from_bytes(taken.payload, "big")
        if self._known(taken) is not None:
            self._drop(taken.stream)
            self._events.append(Unanswered(taken.stream, f"reset: {_name(code)}", code != Code.REFUSED_STREAM))

    def _take_settings(self, taken: Frame) -> None:
        if taken.flags & ACK or len(taken.payload) % 6:
            if taken.payload:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "settings that are cut short")
            return
        if not self._greeted:
            self._greeted, self.max_streams = True, MAX_WINDOW
        for at in range(0, len(taken.payload), 6):
            name = int.from_bytes(taken.payload[at : at + 2], "big")
            self._set(name, int.from_bytes(taken.payload[at + 2 : at + 6], "big"))
        self.out += frame(SETTINGS, ACK, 0)
        self._go_on()

    def _set(self, name: int, value: int) -> None:
        match name:
            case 0x2 if value != 0:
                raise ProtocolError(Code.PROTOCOL_ERROR, "a server that wants to be pushed to")
            case 0x3:
                self.max_streams = value
            case 0x4:
                self._change_windows(value)
            case 0x5 if not MAX_FRAME_BYTES <= value < 1 << 24:
                raise ProtocolError(Code.PROTOCOL_ERROR, "a limit for frames that cannot be")
            case _:
                pass

    def _change_windows(self, value: int) -> None:
        if value > MAX_WINDOW:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "a window that is too large")
        change, self._first_window = value - self._first_window, value
        for stream in self._streams.values():
            stream.window += change
            if stream.window > MAX_WINDOW:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "a window that is too large")

    def _take_ping(self, taken: Frame) -> None:
        if taken.flags & ACK:
            self._pings = 0
        else:
            self.out += frame(PING, ACK, 0, taken.payload)

    def _take_goaway(self, taken: Frame) -> None:
        if len(taken.payload) < 8:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "a goodbye that is cut short")
        last = int.from_bytes(taken.payload[:4], "big") & MAX_WINDOW
        code = int.from_bytes(taken.payload[4:8], "big")
        self.gone = True
        for number in [number for number in self._streams if number > last]:
            self._drop(number)
            self._events.append(Unanswered(number, "the peer went away before it", False))
        self._events.append(GoneAway(code, taken.payload[8:200].decode(errors="replace")))

    def _take_window(self, taken: Frame) -> None:
        more = int.from_bytes(taken.payload, "big") & MAX_WINDOW
        if taken.stream == 0:
            self._window += more
            if more == 0 or self._window > MAX_WINDOW:
                raise ProtocolError(_window_fault(more), "a window that cannot be")
        elif (stream := self._known(taken)) is not None:
            stream.window += more
            if more == 0 or stream.window > MAX_WINDOW:
                self._break(taken.stream, "a window that cannot be", _window_fault(more))
        self._go_on()

    # --- streams

    def _known(self, taken: Frame) -> _Stream | None:
        """The stream, or None when it is over. ProtocolError: there was none."""
        if taken.stream >= self._next_id or taken.stream % 2 == 0:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"stream {taken.stream} was never opened")
        return self._streams.get(taken.stream)

    def _answer(self, number: int, stream: _Stream) -> None:
        if stream.rest:  # answered before the request was complete
            self.out += number_frame(RST_STREAM, number, Code.NO_ERROR)
        self._drop(number)
        self._events.append(Answer(number, stream.status, bytes(stream.body[:MAX_BODY_BYTES])))

    def _break(self, number: int, reason: str, code: Code = Code.PROTOCOL_ERROR) -> None:
        self._drop(number)
        self.out += number_frame(RST_STREAM, number, code)
        self._events.append(Unanswered(number, reason, True))

    def _drop(self, number: int) -> bool:
        self._blocked.pop(number, None)
        return self._streams.pop(number, None) is not None

    def _go_on(self) -> None:
        """Send what the windows allow by now, the oldest first."""
        for number, stream in list(self._blocked.items()):
            if self._window <= 0:
                return
            if self._push_on(number, stream):
                del self._blocked[number]

    def _push_on(self, number: int, stream: _Stream) -> bool:
        """Whether the whole body is out."""
        while stream.rest and (room := min(self._window, stream.window, MAX_FRAME_BYTES)) > 0:
            piece, stream.rest = stream.rest[:room], stream.rest[room:]
            self._window -= len(piece)
            stream.window -= len(piece)
            self.out += frame(DATA, 0 if stream.rest else END_STREAM, number, piece)
        return not stream.rest


def _window_fault(increment: int) -> Code:
    return Code.FLOW_CONTROL_ERROR if increment else Code.PROTOCOL_ERROR


def _name(code: int) -> str:
    return Code(code).name if code in Code._value2member_map_ else f"error {code}"
