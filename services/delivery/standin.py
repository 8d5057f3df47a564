"""Apple's push service as Apple documents it, on this machine: what is sent to it is checked, answered and kept.

It speaks HTTP/2 over TLS with a certificate of its own, so that the sender is the one that talks to Apple.
"""

import asyncio
import contextlib
import uuid
from collections import Counter, deque
from typing import cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import msgspec

from services.delivery.apple import MAX_PAYLOAD_BYTES, Received, RefusedError, Request, checked, is_id
from services.delivery.certificate import SelfSigned
from services.runtime.clock import Clock

KEPT = 10_000
"""How many of the accepted pushes are kept, the newest."""

_STREAMS = 1000


class ApnsStandIn:
    """A service on `port` (0: any free one); `url` is known once it is ready."""

    name = "apns-stand-in"

    def __init__(self, clock: Clock, host: str = "127.0.0.1", port: int = 0) -> None:
        self.received: deque[Received] = deque(maxlen=KEPT)
        self.refused: Counter[str] = Counter()
        self._clock = clock
        self._certificate = SelfSigned.make(host)
        self._place = (host, port)
        self.connections: set[_Connection] = set()
        self._news = asyncio.Event()

    @property
    def url(self) -> str:
        host, port = self._place
        return f"https://{host}:{port}"

    @property
    def authority(self) -> str:
        """PEM text of the certificate that a sender has to trust."""
        return self._certificate.certificate_pem

    async def run(self, ready: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        context = self._certificate.server_context(["h2"])
        server = await loop.create_server(lambda: _Connection(self), *self._place, ssl=context)
        self._place = server.sockets[0].getsockname()[:2]
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in list(self.connections):
                connection.end()

    async def wait_for(self, count: int) -> None:
        """Return once `count` pushes were accepted in all (at most KEPT); the caller sets the deadline."""
        while len(self.received) < count:
            await self._news.wait()

    def take(self, request: Request) -> tuple[list[tuple[str, str]], bytes]:
        """The answer to a request, as HTTP/2 headers and a body."""
        given = dict(request.headers).get("apns-id")
        apns_id = given if given and is_id(given) else str(uuid.uuid4())
        try:
            received = checked(request, self._clock.now_ms())
        except RefusedError as refused:
            self.refused[refused.reason] += 1
            body: dict[str, object] = {"reason": refused.reason}
            if refused.timestamp_ms is not None:
                body["timestamp"] = refused.timestamp_ms
            return [(":status", str(refused.status)), ("apns-id", apns_id)], msgspec.json.encode(body)
        self.received.append(received)
        self._news.set()
        self._news = asyncio.Event()
        return [(":status", "200"), ("apns-id", apns_id)], b""


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection. It reads no further while the peer takes no answers."""

    def __init__(self, standin: ApnsStandIn) -> None:
        self._standin = standin
        self._requests: dict[int, Request] = {}
        self._waiting: dict[int, bytes] = {}
        self._transport: asyncio.Transport
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._standin.connections.add(self)
        self._h2.local_settings.max_concurrent_streams = _STREAMS
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._standin.connections.discard(self)

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._handle(event)
        except (h2.exceptions.ProtocolError, UnicodeDecodeError):
            self.end()
            return
        self._send_waiting()
        self._flush()

    def end(self) -> None:
        """Say GOAWAY and close."""
        if not self._transport.is_closing():
            if self._h2.state_machine.state is not h2.connection.ConnectionState.CLOSED:
                self._h2.close_connection()
            self._flush()
            self._transport.close()

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=stream, headers=headers):
                self._requests[stream] = Request([(str(name), str(value)) for name, value in headers])
            case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                self._h2.acknowledge_received_data(length, stream)
                if request := self._requests.get(stream):
                    request.body += data[: MAX_PAYLOAD_BYTES + 1 - len(request.body)]
            case h2.events.StreamEnded(stream_id=stream):
                self._answer(stream, self._requests.pop(stream))
            case h2.events.StreamReset(stream_id=stream):
                self._requests.pop(stream, None)
                self._waiting.pop(stream, None)
            case h2.events.ConnectionTerminated():
                self.end()
            case _:
                pass

    def _answer(self, stream: int, request: Request) -> None:
        headers, body = self._standin.take(request)
        with contextlib.suppress(h2.exceptions.StreamClosedError):  # the peer has taken the request back
            self._h2.send_headers(stream, headers, end_stream=not body)
            if body:
                self._waiting[stream] = body

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

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)
