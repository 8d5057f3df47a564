"""One HTTP/2 connection of a simulator, by the h2 package, which enforces the protocol strictly."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
from h2.settings import SettingCodes, Settings


@dataclass(frozen=True, slots=True)
class ConnectionBehaviour:
    """Limits and latency of a simulator's connections.

    A connection allows `first_streams` concurrent streams until one request was authenticated, then `streams`.
    `latency_ms` delays every response. `window` is the initial flow-control window of a stream in bytes. After
    `goaway_every` requests a connection sends GOAWAY (0: never). Of a request's body `kept_bytes` are kept.
    """

    streams: int = 1000
    first_streams: int = 1
    latency_ms: int = 0
    window: int = 65_535
    goaway_every: int = 0
    kept_bytes: int = 4097


class Fault(Enum):
    """Misbehaviour of the server in addition to, or in place of, an answer."""

    SILENCE = "no answer to this push, ever"
    RESET = "RST_STREAM with INTERNAL_ERROR"
    REFUSE = "RST_STREAM with REFUSED_STREAM: the push was not processed"
    CUT = "the TCP connection is aborted"
    GOAWAY = "GOAWAY that includes this push, which is answered"
    GOAWAY_BEFORE = "GOAWAY that excludes this push"
    HALF_OPEN = "the connection sends nothing more, not even ping acknowledgements"
    ONE_STREAM = "one concurrent stream until the next push is accepted"


ACCEPTING_FAULTS = (None, Fault.GOAWAY, Fault.ONE_STREAM)
"""The faults after which a push counts as accepted."""


@dataclass(slots=True)
class HttpRequest:
    """A request; `headers` include pseudo-headers and repetitions."""

    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)

    def header(self, name: str) -> str | None:
        return next((value for known_name, value in self.headers if known_name == name), None)


_PIECE_BYTES = 4096
"""Bytes parsed before their requests are answered: h2 counts all open streams again for each new one."""

_RESET_CODES = {
    Fault.RESET: h2.errors.ErrorCodes.INTERNAL_ERROR,
    Fault.REFUSE: h2.errors.ErrorCodes.REFUSED_STREAM,
}


class ScriptedReply(NamedTuple):
    """A response, with a fault in addition to or in place of it; `authenticated`: the sender proved who it is."""

    headers: list[tuple[str, str]]
    body: bytes
    fault: Fault | None = None
    authenticated: bool = True


class RequestHandler(Protocol):
    """Answers the requests of a connection."""

    @property
    def behaviour(self) -> ConnectionBehaviour: ...

    def reply_to(self, request: HttpRequest) -> ScriptedReply: ...


class Http2ServerConnection(asyncio.Protocol):
    """One client's connection, a member of `connections` while it is open.

    It stops reading while the client does not read its responses.
    """

    def __init__(self, handler: RequestHandler, connections: "set[Http2ServerConnection]") -> None:
        self._handler = handler
        self._connections = connections
        self._requests: dict[int, HttpRequest] = {}
        self._unsent_bodies: dict[int, bytes] = {}
        self.max_open_requests = 0
        """The highest number of concurrent requests so far."""
        self.pings = 0
        self._request_count = 0
        self._allowed_streams = 1
        self._delayed: dict[int, asyncio.TimerHandle] = {}
        self._goaway_last_stream: int | None = None
        self._is_mute = False
        self._transport: asyncio.Transport
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        behaviour = self._handler.behaviour
        self._allowed_streams = behaviour.first_streams
        first = {
            SettingCodes.MAX_CONCURRENT_STREAMS: self._allowed_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: behaviour.window,
        }
        self._h2.local_settings = Settings(client=False, initial_values=first)
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        for timer in self._delayed.values():
            timer.cancel()

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._is_mute:
            return
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                for event in self._h2.receive_data(data[start : start + _PIECE_BYTES]):
                    self._handle(event)
        except (h2.exceptions.ProtocolError, UnicodeDecodeError):
            self.close()
            return
        self._send_bodies()
        self._flush()
        self._close_when_drained()

    def close(self) -> None:
        """Send GOAWAY and close the connection."""
        if not self._transport.is_closing():
            if self._h2.state_machine.state is not h2.connection.ConnectionState.CLOSED:
                self._h2.close_connection()
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Abort the TCP connection without GOAWAY."""
        self._transport.abort()

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=stream, headers=headers):
                self._requests[stream] = HttpRequest([(str(name), str(value)) for name, value in headers])
                self.max_open_requests = max(self.max_open_requests, self._h2.open_inbound_streams)
            case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                self._h2.acknowledge_received_data(length, stream)
                if request := self._requests.get(stream):
                    request.body += data[: self._handler.behaviour.kept_bytes - len(request.body)]
            case h2.events.StreamEnded(stream_id=stream):
                if request := self._requests.pop(stream, None):
                    self._respond(stream, request)
            case h2.events.StreamReset(stream_id=stream):
                self._requests.pop(stream, None)
                self._unsent_bodies.pop(stream, None)
            case h2.events.PingReceived():
                self.pings += 1
            case h2.events.ConnectionTerminated():
                self.close()
            case _:
                pass

    # --- requests

    def _respond(self, stream: int, request: HttpRequest) -> None:
        if self._goaway_last_stream is not None and stream > self._goaway_last_stream:
            return
        self._request_count += 1
        reply = self._handler.reply_to(request)
        behaviour = self._handler.behaviour
        if behaviour.latency_ms:
            self._delayed[stream] = asyncio.get_running_loop().call_later(
                behaviour.latency_ms / 1000, self._reply_delayed, stream, reply
            )
        else:
            self._reply(stream, reply)
        if behaviour.goaway_every and self._request_count == behaviour.goaway_every:
            self._send_goaway(self._h2.highest_inbound_stream_id)

    def _reply_delayed(self, stream: int, reply: ScriptedReply) -> None:
        del self._delayed[stream]
        self._reply(stream, reply)
        self._send_bodies()
        self._flush()
        self._close_when_drained()

    def _reply(self, stream: int, reply: ScriptedReply) -> None:
        match reply.fault:
            case Fault.SILENCE:
                return
            case Fault.RESET | Fault.REFUSE:
                self._h2.reset_stream(stream, _RESET_CODES[reply.fault])
            case Fault.CUT:
                self.abort()
            case Fault.HALF_OPEN:
                self._is_mute = True
            case Fault.GOAWAY_BEFORE:
                self._send_goaway(max(0, stream - 2))
            case Fault.GOAWAY:
                self._answer(stream, reply)
                self._send_goaway(self._h2.highest_inbound_stream_id)
            case Fault.ONE_STREAM:
                self._answer(stream, reply)
                self._allow(1)
            case None:
                self._answer(stream, reply)

    def _answer(self, stream: int, reply: ScriptedReply) -> None:
        if reply.authenticated:
            self._allow(self._handler.behaviour.streams)
        with contextlib.suppress(h2.exceptions.StreamClosedError):  # the client has cancelled the request
            self._h2.send_headers(stream, reply.headers, end_stream=not reply.body)
            if reply.body:
                self._unsent_bodies[stream] = reply.body

    def _allow(self, streams: int) -> None:
        if streams != self._allowed_streams:
            self._allowed_streams = streams
            self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: streams})

    def _send_bodies(self) -> None:
        """Send as much of the unsent bodies as the client's flow-control windows allow."""
        for stream, body in list(self._unsent_bodies.items()):
            sendable = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if sendable <= 0:
                continue
            self._h2.send_data(stream, body[:sendable], end_stream=len(body) <= sendable)
            self._unsent_bodies[stream] = body[sendable:]
            if not self._unsent_bodies[stream]:
                del self._unsent_bodies[stream]

    def _send_goaway(self, last: int) -> None:
        """Send GOAWAY. Requests up to stream `last` are still answered, unlike after h2's own GOAWAY."""
        self._goaway_last_stream = last
        self._flush()
        payload = last.to_bytes(4, "big") + bytes(4) + b'{"reason":"Shutdown"}'
        self._transport.write(len(payload).to_bytes(3, "big") + b"\x07\x00\x00\x00\x00\x00" + payload)

    def _close_when_drained(self) -> None:
        """After GOAWAY, close the connection once every request up to its last stream is answered."""
        last = self._goaway_last_stream
        if last is None or self._unsent_bodies or self._delayed:
            return
        if not any(stream <= last for stream in self._requests):
            self._transport.close()

    def _flush(self) -> None:
        if (data := self._h2.data_to_send()) and not self._is_mute:
            self._transport.write(data)
