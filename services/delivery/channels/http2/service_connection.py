"""One connection to a push service: TLS, HTTP/2, time-outs, pings and back-pressure."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, Protocol, cast

from services.delivery.channels import Answer, PendingRequest, Request
from services.delivery.channels.http2.connection import ClientConnection
from services.delivery.channels.http2.frames import (
    Event,
    GoAwayReceived,
    Http2Code,
    ProtocolError,
    RequestFailed,
    Response,
)
from services.process.logs import logger

MAX_STREAMS = 1000
"""Concurrent requests, even if the server allows more."""

_WRITE_BUFFER_BYTES = 1 << 18


class WireRequest(NamedTuple):
    """A request as it is sent: its header block (HPACK) and its body. `token`: what authorises it, for the callback."""

    block: bytes
    body: bytes
    token: str


class AnswerReader(Protocol[Answer]):
    """Makes a service's answers of responses."""

    def read(self, response: Response) -> Answer: ...

    def unknown(self, reason: str) -> Answer:
        """Return the answer where there was none, so that it is unknown whether the service acted on the request."""
        ...

    def proves(self, answer: Answer) -> bool:
        """Whether the answer shows that the service has accepted the sender."""
        ...


# Requests in flight on a connection, and the time-outs that apply to them.


class Timeouts(NamedTuple):
    """The time-outs of a connection, in seconds.

    `connect`: to open a connection. `request`: for a response. `probe`: for a response on a connection where no request
    has been accepted yet; further ones wait for it. `silence`: without bytes from the server, until a ping.
    `pong`: for the acknowledgement of a ping. `idle`: without a request, until the connection is closed.
    """

    connect: float = 5.0
    request: float = 20.0
    probe: float = 5.0
    silence: float = 60.0
    pong: float = 10.0
    idle: float = 1800.0


class InFlightRequest(NamedTuple, Generic[Request, Answer]):
    """A request without a response yet; `deadline_s` in the event loop's time."""

    pending: PendingRequest[Request, Answer]
    token: str
    deadline_s: float


class InFlightRequests(Generic[Request, Answer]):
    """Requests by stream id, in the order of their deadlines.

    The order holds because a probe, whose time-out is shorter, is the only request while it is in flight.
    """

    def __init__(self) -> None:
        self._by_stream: dict[int, InFlightRequest[Request, Answer]] = {}

    def __len__(self) -> int:
        return len(self._by_stream)

    def add(self, stream: int, request: InFlightRequest[Request, Answer]) -> None:
        self._by_stream[stream] = request

    def pop(self, stream: int) -> InFlightRequest[Request, Answer] | None:
        return self._by_stream.pop(stream, None)

    def take_overdue(self, now_s: float) -> list[tuple[int, InFlightRequest[Request, Answer]]]:
        """Remove and return the requests whose deadline has passed."""
        overdue = list(self._overdue(now_s))
        for stream, _ in overdue:
            del self._by_stream[stream]
        return overdue

    def take_all(self) -> list[tuple[int, InFlightRequest[Request, Answer]]]:
        """Remove and return every request."""
        requests, self._by_stream = self._by_stream, {}
        return list(requests.items())

    def _overdue(self, now_s: float) -> Iterator[tuple[int, InFlightRequest[Request, Answer]]]:
        for stream, request in self._by_stream.items():
            if request.deadline_s > now_s:
                return
            yield stream, request


class ServiceConnection(asyncio.Protocol, Generic[Request, Answer]):
    """One HTTP/2 connection to a push service.

    It calls `on_answer` with every answer, `on_unprocessed` with every request that the service certainly did not act
    on, and `on_change` when the capacity may have grown or the connection is closed. `max_unproven`: requests at once
    until it has accepted one.
    """

    def __init__(
        self,
        answers: AnswerReader[Answer],
        on_answer: Callable[["ServiceConnection[Request, Answer]", PendingRequest[Request, Answer], str, Answer], None],
        on_unprocessed: Callable[[PendingRequest[Request, Answer]], None],
        on_change: Callable[["ServiceConnection[Request, Answer]"], None],
        timeouts: Timeouts,
        max_unproven: int,
    ) -> None:
        self._answers = answers
        self._on_answer = on_answer
        self._on_unprocessed = on_unprocessed
        self._on_change = on_change
        self._timeouts = timeouts
        self._max_unproven = max_unproven
        self._http = ClientConnection()
        self._requests: InFlightRequests[Request, Answer] = InFlightRequests()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._last_received_s = self._last_request_s = self._last_ping_s = self._loop.time()
        self._next_check: asyncio.TimerHandle | None = None
        self._flush_scheduled = False
        self._is_paused = False
        self.is_proven = False
        """Whether the service has accepted the sender here; before that, it may allow one request at a time."""
        self.draining = False
        self.is_idle = False
        self.is_closed = False

    async def open(self, host: str, port: int, tls: ssl.SSLContext) -> None:
        """Connect to the server. OSError, such as TimeoutError: there is no connection."""
        async with asyncio.timeout(self._timeouts.connect):
            await self._loop.create_connection(lambda: self, host, port, ssl=tls)
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self._close("the server speaks no HTTP/2")
            raise ConnectionError("the server speaks no HTTP/2")

    @property
    def capacity(self) -> int:
        """Number of requests that may be sent now."""
        if self.draining or self.is_closed or self._is_paused:
            return 0
        max_streams = MAX_STREAMS if self.is_proven else self._max_unproven
        return max(0, min(self._http.free_streams, max_streams - self._http.open_streams))

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    def send(self, pending: PendingRequest[Request, Answer], wire: WireRequest) -> None:
        """Send the request; there must be capacity. Requests of one turn of the event loop are written together."""
        self._last_request_s = self._loop.time()
        stream = self._http.request(wire.block, wire.body)
        timeout_s = self._timeouts.request if self.is_proven else self._timeouts.probe
        self._requests.add(stream, InFlightRequest(pending, wire.token, self._last_request_s + timeout_s))
        self._schedule_flush()

    def drain(self) -> None:
        """Accept no more requests; close when all in-flight ones are answered."""
        self.draining = True
        if not self._requests:
            self._close("closed")

    def close(self) -> None:
        self._close("closed")

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        self._last_received_s = self._last_request_s = self._loop.time()
        self._flush()
        self._check_timeouts()

    def connection_lost(self, exc: Exception | None) -> None:
        self._close(f"connection lost: {exc or 'closed by the server'}")

    def pause_writing(self) -> None:
        """Also pause reading, because frames received cause more writes."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._transport is not None:
            self._transport.resume_reading()
        self._on_change(self)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._last_received_s = self._loop.time()
        try:
            events = self._http.receive(data)
        except ProtocolError as error:
            logger.warning("a push service breaks HTTP/2", error=str(error))
            self._close(f"connection lost: {error}")
            return
        for event in events:
            self._handle(event)
        self._schedule_flush()
        if self.draining and not self._requests:
            self._close("closed")
        self._on_change(self)

    # --- results

    def _handle(self, event: Event) -> None:
        match event:
            case Response(stream):
                if request := self._requests.pop(stream):
                    self._answered(request, event)
            case RequestFailed(stream, reason, processed):
                if request := self._requests.pop(stream):
                    self._failed(request, reason, processed)
            case GoAwayReceived(code, text):
                logger.info("a push service closes a connection", code=code, text=text)
                self.draining = True

    def _answered(self, request: InFlightRequest[Request, Answer], response: Response) -> None:
        answer = self._answers.read(response)
        if self._answers.proves(answer):
            self.is_proven = True
        self._on_answer(self, request.pending, request.token, answer)

    def _failed(self, request: InFlightRequest[Request, Answer], reason: str, processed: bool) -> None:
        if processed:
            self._on_answer(self, request.pending, request.token, self._answers.unknown(reason))
        else:
            self._on_unprocessed(request.pending)

    # --- time-outs

    def _check_timeouts(self) -> None:
        """Check the time-outs, a few times in each, for as long as the connection is open."""
        if self.is_closed:
            return
        now_s = self._loop.time()
        self._cancel_overdue(now_s)
        if self._http.unanswered_pings:
            if now_s - self._last_ping_s > self._timeouts.pong:
                self._close("connection lost: no answer to a ping", abort=True)
                return
        elif now_s - self._last_received_s > self._timeouts.silence:
            self._ping(now_s)
            self._flush()
        if now_s - self._last_request_s > self._timeouts.idle:
            self.is_idle = True
            self.drain()
        if not self.is_closed:
            interval_s = min(1.0, self._timeouts.request / 4, self._timeouts.silence / 4)
            self._next_check = self._loop.call_later(interval_s, self._check_timeouts)

    def _cancel_overdue(self, now_s: float) -> None:
        """Give up overdue requests, and ping if nothing at all was received for half a time-out."""
        overdue = self._requests.take_overdue(now_s)
        for stream, request in overdue:
            sent = self._http.is_sent(stream)
            self._http.cancel(stream)
            self.draining |= not sent
            self._failed(request, "no answer in time", sent)
        if overdue:
            if not self._http.unanswered_pings and now_s - self._last_received_s >= self._timeouts.request / 2:
                self._ping(now_s)
            self._flush()
            self._on_change(self)

    def _ping(self, now_s: float) -> None:
        self._http.ping()
        self._last_ping_s = now_s

    # --- writing and closing

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled and self._http.out:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._http.out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(bytes(self._http.out))
            self._http.out.clear()

    def _close(self, reason: str, abort: bool = False) -> None:
        """Close once; in-flight requests fail with the reason."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._next_check is not None:
            self._next_check.cancel()
        self._close_transport(abort)
        for stream, request in self._requests.take_all():
            self._failed(request, reason, self._http.is_sent(stream))
        self._on_change(self)

    def _close_transport(self, abort: bool) -> None:
        if self._transport is None:
            return
        if abort:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._http.send_goaway(Http2Code.NO_ERROR)
            self._flush()
            self._transport.close()
