"""One HTTP/2 connection of the stand-in, by h2: every rule of the protocol is enforced."""

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
from h2.settings import SettingCodes, Settings

from services.apns_simulator.rules import MAX_PAYLOAD_BYTES, Request
from services.apns_simulator.script import Fault

if TYPE_CHECKING:
    from services.apns_simulator.server import ApnsSimulator

_CODES = {
    Fault.RESET: h2.errors.ErrorCodes.INTERNAL_ERROR,
    Fault.REFUSE: h2.errors.ErrorCodes.REFUSED_STREAM,
}


class Reply(NamedTuple):
    """The answer, and what is done besides or in its place; `proven`: the request had a good provider token."""

    headers: list[tuple[str, str]]
    body: bytes
    fault: Fault | None = None
    proven: bool = True


class Connection(asyncio.Protocol):
    """It adds itself to the connections while it lives. It reads no further while the peer takes no answers."""

    def __init__(self, simulator: "ApnsSimulator", connections: "set[Connection]") -> None:
        self._simulator = simulator
        self._connections = connections
        self._requests: dict[int, Request] = {}
        self._waiting: dict[int, bytes] = {}
        self.most_open = 0
        """The most requests that were open at once."""
        self.pings = 0
        self._taken = 0
        self._most_streams = 1
        self._delayed: dict[int, asyncio.TimerHandle] = {}
        self._last: int | None = None
        self._mute = False
        self._transport: asyncio.Transport
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        behaviour = self._simulator.behaviour
        self._most_streams = behaviour.first_streams
        first = {
            SettingCodes.MAX_CONCURRENT_STREAMS: self._most_streams,
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
        if self._mute:
            return
        try:
            for event in self._h2.receive_data(data):
                self._handle(event)
        except (h2.exceptions.ProtocolError, UnicodeDecodeError):
            self.end()
            return
        self._send_waiting()
        self._flush()
        self._end_when_answered()

    def end(self) -> None:
        """Say GOAWAY and close."""
        if not self._transport.is_closing():
            if self._h2.state_machine.state is not h2.connection.ConnectionState.CLOSED:
                self._h2.close_connection()
            self._flush()
            self._transport.close()

    def cut(self) -> None:
        """End without a word."""
        self._transport.abort()

    def say_goodbye(self) -> None:
        """GOAWAY: what was asked so far is answered still, later requests are ignored."""
        self._say_goodbye(self._h2.highest_inbound_stream_id)
        self._end_when_answered()

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=stream, headers=headers):
                self._requests[stream] = Request([(str(name), str(value)) for name, value in headers])
                self.most_open = max(self.most_open, self._h2.open_inbound_streams)
            case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                self._h2.acknowledge_received_data(length, stream)
                if request := self._requests.get(stream):
                    request.body += data[: MAX_PAYLOAD_BYTES + 1 - len(request.body)]
            case h2.events.StreamEnded(stream_id=stream):
                if request := self._requests.pop(stream, None):
                    self._take(stream, request)
            case h2.events.StreamReset(stream_id=stream):
                self._requests.pop(stream, None)
                self._waiting.pop(stream, None)
            case h2.events.PingReceived():
                self.pings += 1
            case h2.events.ConnectionTerminated():
                self.end()
            case _:
                pass

    # --- requests

    def _take(self, stream: int, request: Request) -> None:
        if self._last is not None and stream > self._last:
            return
        self._taken += 1
        reply = self._simulator.take(request)
        behaviour = self._simulator.behaviour
        if behaviour.latency_ms:
            self._delayed[stream] = asyncio.get_running_loop().call_later(
                behaviour.latency_ms / 1000, self._reply_late, stream, reply
            )
        else:
            self._reply(stream, reply)
        if behaviour.goodbye_every and self._taken == behaviour.goodbye_every:
            self._say_goodbye(self._h2.highest_inbound_stream_id)

    def _reply_late(self, stream: int, reply: Reply) -> None:
        del self._delayed[stream]
        self._reply(stream, reply)
        self._send_waiting()
        self._flush()
        self._end_when_answered()

    def _reply(self, stream: int, reply: Reply) -> None:
        match reply.fault:
            case Fault.SILENCE:
                return
            case Fault.RESET | Fault.REFUSE:
                self._h2.reset_stream(stream, _CODES[reply.fault])
            case Fault.CUT:
                self.cut()
            case Fault.HALF_OPEN:
                self._mute = True
            case Fault.GOODBYE_BEFORE:
                self._say_goodbye(stream - 2)
            case Fault.GOODBYE:
                self._answer(stream, reply)
                self._say_goodbye(self._h2.highest_inbound_stream_id)
            case Fault.ONE_STREAM:
                self._answer(stream, reply)
                self._allow(1)
            case None:
                self._answer(stream, reply)

    def _answer(self, stream: int, reply: Reply) -> None:
        if reply.proven:
            self._allow(self._simulator.behaviour.streams)
        with contextlib.suppress(h2.exceptions.StreamClosedError):  # the peer has taken the request back
            self._h2.send_headers(stream, reply.headers, end_stream=not reply.body)
            if reply.body:
                self._waiting[stream] = reply.body

    def _allow(self, streams: int) -> None:
        if streams != self._most_streams:
            self._most_streams = streams
            self._h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: streams})

    def _send_waiting(self) -> None:
        """Send what the peer's flow-control windows allow of the bodies that wait."""
        for stream, body in list(self._waiting.items()):
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                continue
            self._h2.send_data(stream, body[:room], end_stream=len(body) <= room)
            self._waiting[stream] = body[room:]
            if not self._waiting[stream]:
                del self._waiting[stream]

    def _say_goodbye(self, last: int) -> None:
        self._last = last
        self._flush()
        payload = last.to_bytes(4, "big") + bytes(4) + b'{"reason":"Shutdown"}'
        self._transport.write(len(payload).to_bytes(3, "big") + b"\x07\x00\x00\x00\x00\x00" + payload)

    def _end_when_answered(self) -> None:
        if self._last is not None and not (self._waiting or self._delayed) and not self._open_requests():
            self._transport.close()

    def _open_requests(self) -> bool:
        return any(stream <= cast(int, self._last) for stream in self._requests)

    def _flush(self) -> None:
        if (data := self._h2.data_to_send()) and not self._mute:
            self._transport.write(data)
