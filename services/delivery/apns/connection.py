"""One connection to Apple's push service: TLS, HTTP/2, and a deadline on everything."""

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple, cast

from services.delivery.apns.push import UNKNOWN, ApnsResult, Sending
from services.delivery.apns.request import result
from services.delivery.http2.connection import Answer, ClientConnection, GoneAway, Unanswered
from services.delivery.http2.frames import Code, ProtocolError
from services.runtime.process.logs import logger

MOST_STREAMS = 1000
"""Requests at once, however many more the peer would take."""

_UNPROVEN_STATUSES = frozenset((403, 429))
_NOT_SENT = "the connection ended before it was sent"


class Times(NamedTuple):
    """Seconds. `connect`: for a connection; `deadline`: for one request; `alone`: for one that others wait for.
    `quiet`: without a word, then a ping; `pong`: for its answer. `idle`: without a request, then it is closed."""

    connect: float = 5.0
    deadline: float = 20.0
    alone: float = 5.0
    quiet: float = 60.0
    pong: float = 10.0
    idle: float = 1800.0


class _Flight(NamedTuple):
    sending: Sending
    provider_token: str
    until_s: float


OnAnswer = Callable[["Link", Sending, str, ApnsResult], None]
"""The link, the push, the provider token it went with, the result."""


class Link(asyncio.Protocol):
    """`on_answer` is told every result; `on_return` every push that was certainly not acted upon; `on_change` that
    there may be room for more, or that the link is over."""

    def __init__(
        self,
        on_answer: OnAnswer,
        on_return: Callable[[Sending], None],
        on_change: Callable[["Link"], None],
        times: Times,
    ) -> None:
        self._on_answer = on_answer
        self._on_return = on_return
        self._on_change = on_change
        self._times = times
        self._http = ClientConnection()
        self._flights: dict[int, _Flight] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._asked_s = self._pinged_s = self._loop.time()
        self._tick: asyncio.TimerHandle | None = None
        self._flushing = False
        self._full = False
        self.is_proven = False
        """Whether the peer has accepted a provider token here; before that it takes one request at a time."""
        self.draining = False
        self.is_idle = False
        self.is_over = False

    async def open(self, host: str, port: int, trust: ssl.SSLContext) -> None:
        """OSError or TimeoutError: there is no connection."""
        async with asyncio.timeout(self._times.connect):
            await self._loop.create_connection(lambda: self, host, port, ssl=trust)
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self._end("the server speaks no HTTP/2")
            raise ConnectionError("the server speaks no HTTP/2")

    @property
    def free(self) -> int:
        """How many pushes it takes now."""
        if self.draining or self.is_over or self._full:
            return 0
        most = MOST_STREAMS if self.is_proven else 1
        return max(0, min(self._http.free, most - self._http.open))

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def send(self, sending: Sending, block: bytes, provider_token: str) -> None:
        """Only while `free`. What is sent in one turn of the loop is written together."""
        self._asked_s = self._loop.time()
        stream = self._http.request(block, sending.push.payload)
        deadline_s = self._times.deadline if self.is_proven else self._times.alone
        self._flights[stream] = _Flight(sending, provider_token, self._asked_s + deadline_s)
        self._flush_soon()

    def drain(self) -> None:
        """Take no more; close when everything is answered."""
        self.draining = True
        if not self._flights:
            self._end("closed")

    def close(self) -> None:
        self._end("closed")

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(1 << 18)
        self._heard_s = self._asked_s = self._loop.time()
        self._flush()
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"connection lost: {exc or 'closed by the server'}")

    def pause_writing(self) -> None:
        """What is heard is answered with more writing, so nothing is heard either."""
        self._full = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if self._transport is not None:
            self._transport.resume_reading()
        self._on_change(self)

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
        self._heard_s = self._loop.time()
        try:
            events = self._http.receive(data)
        except ProtocolError as error:
            logger.warning("a push service breaks HTTP/2", error=str(error))
            self._end(f"connection lost: {error}")
            return
        for event in events:
            self._handle(event)
        self._flush_soon()
        if self.draining and not self._flights:
            self._end("closed")
        self._on_change(self)

    # --- what was heard

    def _handle(self, event: Answer | Unanswered | GoneAway) -> None:
        match event:
            case Answer(stream, status, body):
                if flight := self._flights.pop(stream, None):
                    self._answered(flight, result(status, body))
            case Unanswered(stream, reason, processed):
                if flight := self._flights.pop(stream, None):
                    self._unanswered(flight, reason, processed)
            case GoneAway(code, text):
                logger.info("a push service ends a connection", code=code, text=text)
                self.draining = True

    def _answered(self, flight: _Flight, answer: ApnsResult) -> None:
        if answer.status < 500 and answer.status not in _UNPROVEN_STATUSES:
            self.is_proven = True
        self._on_answer(self, flight.sending, flight.provider_token, answer)

    def _unanswered(self, flight: _Flight, reason: str, processed: bool) -> None:
        if processed:
            self._on_answer(self, flight.sending, flight.provider_token, ApnsResult(UNKNOWN, reason))
        else:
            self._on_return(flight.sending)

    # --- time

    def _check(self) -> None:
        """Runs a few times within a deadline, as long as the link lives."""
        if self.is_over:
            return
        now_s = self._loop.time()
        self._give_up_late_ones(now_s)
        if self._http.pings_out:
            if now_s - self._pinged_s > self._times.pong:
                self._end("connection lost: no answer to a ping", abort=True)
                return
        elif now_s - self._heard_s > self._times.quiet:
            self._http.ping()
            self._pinged_s = now_s
            self._flush()
        if now_s - self._asked_s > self._times.idle:
            self.is_idle = True
            self.drain()
        if not self.is_over:
            self._tick = self._loop.call_later(min(1.0, self._times.deadline / 4, self._times.quiet / 4), self._check)

    def _give_up_late_ones(self, now_s: float) -> None:
        """Requests stand in the order of their deadlines, as those that go alone have no others beside them."""
        late = []
        for stream, flight in self._flights.items():
            if flight.until_s > now_s:
                break
            late.append(stream)
        for stream in late:
            sent = self._http.is_sent(stream)
            self._http.cancel(stream)
            self.draining |= not sent
            self._unanswered(self._flights.pop(stream), "no answer in time", sent)
        if late:
            self._ping_if_silent(now_s)
            self._flush()
            self._on_change(self)

    def _ping_if_silent(self, now_s: float) -> None:
        """Requests are not answered: is anybody there?"""
        if not self._http.pings_out and now_s - self._heard_s >= self._times.deadline / 2:
            self._http.ping()
            self._pinged_s = now_s

    # --- writing

    def _flush_soon(self) -> None:
        if not self._flushing and self._http.out:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._http.out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(bytes(self._http.out))
            self._http.out.clear()

    def _end(self, reason: str, abort: bool = False) -> None:
        """Close, once; whoever waits for an answer is told that there will be none."""
        if self.is_over:
            return
        self.is_over = True
        if self._tick is not None:
            self._tick.cancel()
        self._hang_up(abort)
        flights, self._flights = self._flights, {}
        for stream, flight in flights.items():
            self._unanswered(flight, reason, self._http.is_sent(stream))
        self._on_change(self)

    def _hang_up(self, abort: bool) -> None:
        if self._transport is None:
            return
        if abort:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._http.say_goodbye(Code.NO_ERROR)
            self._flush()
            self._transport.close()
