"""One connection to Apple's push service: TLS, HTTP/2, time-outs, pings and back-pressure."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from services.delivery.channels.apns.http2.connection import ClientConnection
from services.delivery.channels.apns.http2.frames import (
    Code,
    Event,
    GoAwayReceived,
    ProtocolError,
    RequestFailed,
    Response,
)
from services.delivery.channels.apns.request import (
    UNKNOWN,
    ApnsResult,
    InFlightRequest,
    InFlightRequests,
    PendingPush,
    Timeouts,
    parse_response,
)
from services.process.logs import logger

MAX_STREAMS = 1000
"""Concurrent requests, even if the server allows more."""

_WRITE_BUFFER_BYTES = 1 << 18
_STATUSES_BEFORE_PROOF = frozenset((403, 429))
"""Statuses below 500 that do not prove that Apple has accepted the provider token."""

OnResult = Callable[["ApnsConnection", PendingPush, str, ApnsResult], None]
"""Called with the connection, the push, the provider token it was sent with, and the result."""


class ApnsConnection(asyncio.Protocol):
    """One HTTP/2 connection to Apple's push service.

    It calls `on_result` with every result, `on_unprocessed` with every push that Apple certainly did not act on, and
    `on_change` when the capacity may have grown or the connection is closed.
    """

    def __init__(
        self,
        on_result: OnResult,
        on_unprocessed: Callable[[PendingPush], None],
        on_change: Callable[["ApnsConnection"], None],
        timeouts: Timeouts,
    ) -> None:
        self._on_result = on_result
        self._on_unprocessed = on_unprocessed
        self._on_change = on_change
        self._timeouts = timeouts
        self._http = ClientConnection()
        self._requests = InFlightRequests()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._last_received_s = self._last_request_s = self._last_ping_s = self._loop.time()
        self._next_check: asyncio.TimerHandle | None = None
        self._flush_scheduled = False
        self._is_paused = False
        self.is_proven = False
        """Whether Apple has accepted a provider token here; before that, Apple allows one request at a time."""
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
        """Number of pushes that may be sent now."""
        if self.draining or self.is_closed or self._is_paused:
            return 0
        max_streams = MAX_STREAMS if self.is_proven else 1
        return max(0, min(self._http.free_streams, max_streams - self._http.open_streams))

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    def send(self, pending: PendingPush, block: bytes, provider_token: str) -> None:
        """Send the push; there must be capacity. Requests of one turn of the event loop are written together."""
        self._last_request_s = self._loop.time()
        stream = self._http.request(block, pending.request.payload)
        timeout_s = self._timeouts.request if self.is_proven else self._timeouts.probe
        self._requests.add(stream, InFlightRequest(pending, provider_token, self._last_request_s + timeout_s))
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
            case Response(stream, status, body):
                if request := self._requests.pop(stream):
                    self._answered(request, parse_response(status, body))
            case RequestFailed(stream, reason, processed):
                if request := self._requests.pop(stream):
                    self._failed(request, reason, processed)
            case GoAwayReceived(code, text):
                logger.info("a push service closes a connection", code=code, text=text)
                self.draining = True

    def _answered(self, request: InFlightRequest, result: ApnsResult) -> None:
        if result.status < 500 and result.status not in _STATUSES_BEFORE_PROOF:
            self.is_proven = True
        self._on_result(self, request.pending, request.provider_token, result)

    def _failed(self, request: InFlightRequest, reason: str, processed: bool) -> None:
        if processed:
            self._on_result(self, request.pending, request.provider_token, ApnsResult(UNKNOWN, reason))
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
            self._http.send_goaway(Code.NO_ERROR)
            self._flush()
            self._transport.close()
