"""Sends requests to one server over HTTP/2: a queue, connections that open on demand, and their back-off."""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import Generic
from urllib.parse import urlsplit

from services.delivery.channels import Answer, PendingRequest, Request
from services.delivery.channels.health import UnreachableServices
from services.delivery.channels.http2.service_connection import AnswerReader, ServiceConnection, Timeouts, WireRequest
from services.delivery.limits import CircuitBreaker
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.turns import SpacedSlices

CONNECTIONS = 2
"""Connections of a sender. More add little: services allow many concurrent requests on each."""

_AT_ONCE = 32
"""Requests that are made before other tasks run: about a millisecond."""

_REQUESTS_A_TURN = 4
"""For so many requests, other work has one turn of the event loop more before further ones are made."""

_FIRST_BACKOFF_MS = 1_000
_MAX_BACKOFF_MS = 900_000


class ConnectionSlot(Generic[Request, Answer]):
    """Holds at most one connection, opened on demand and reopened after a failure and its back-off."""

    def __init__(self) -> None:
        self.circuit = CircuitBreaker(_FIRST_BACKOFF_MS, _MAX_BACKOFF_MS)
        self.connection: ServiceConnection[Request, Answer] | None = None
        self.connecting: asyncio.Task[None] | None = None

    @property
    def is_warming_up(self) -> bool:
        """Whether the connection accepts few requests at a time because none has been accepted on it yet."""
        connection = self.connection
        return connection is not None and self.circuit.is_closed and not (connection.is_proven or connection.draining)

    def capacity(self, now_ms: int) -> int:
        """Number of requests that may be sent now."""
        if self.connection is None or self.circuit.is_open(now_ms):
            return 0
        free = self.connection.capacity
        return free if self.circuit.is_closed else min(free, 1 - self.connection.in_flight)


class Http2Sender(ABC, Generic[Request, Answer]):
    """Sends requests to one server; the caller bounds the number that it submits.

    `name`: the service's, in logs. `channel`: what it is called in metrics.
    `authority`: PEM text of trusted certificates, None for the system's. `max_unproven`: as of a ServiceConnection.
    """

    def __init__(
        self,
        name: str,
        channel: str,
        url: str,
        answers: AnswerReader[Answer],
        clock: Clock,
        authority: str | None = None,
        timeouts: Timeouts | None = None,
        connections: int = CONNECTIONS,
        max_unproven: int = 1,
    ) -> None:
        parts = urlsplit(url)
        self._name = name
        self._host = parts.hostname or ""
        self._port = parts.port or 443
        self._authority = parts.netloc
        self._answers = answers
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._max_unproven = max_unproven
        self._unreachable = UnreachableServices(channel, clock)
        self._tls = ssl.create_default_context(cadata=authority)
        self._tls.set_alpn_protocols(["h2"])
        self._slots: list[ConnectionSlot[Request, Answer]] = [ConnectionSlot() for _ in range(connections)]
        self._connections: set[ServiceConnection[Request, Answer]] = set()
        self._queue: deque[PendingRequest[Request, Answer]] = deque()
        self._wake_up: asyncio.Task[None] | None = None
        self._sending = SpacedSlices(self._send_queued)
        self._closed = False

    # --- what differs between services

    @abstractmethod
    def _wire(self, request: Request) -> WireRequest | Answer:
        """Return the request as it is sent, or the answer of one that the service would certainly refuse."""

    @abstractmethod
    def _maintain(
        self,
        slot: ConnectionSlot[Request, Answer],
        connection: ServiceConnection[Request, Answer],
        token: str,
        answer: Answer,
    ) -> None:
        """Apply what an answer means for the connection, and for the token that authorised the request."""

    def _is_authorised(self) -> bool:
        """Whether requests may be sent now; if not, `_schedule` is called once they may, or `_answer_all`."""
        return True

    # --- requests

    def submit(self, pending: PendingRequest[Request, Answer], /) -> None:
        """Send the request as soon as a connection has capacity; it is called back once with the answer."""
        self._queue.append(pending)
        self._schedule()

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        """Send the request as `submit` does, and return the answer. TimeoutError: there was none in time."""
        asked: _Asked[Request, Answer] = _Asked(request)
        self.submit(asked)
        async with asyncio.timeout(timeout_s):
            return await asked.answer

    @property
    def is_idle(self) -> bool:
        """Whether no request waits, or is in flight."""
        return not self._queue and not any(connection.in_flight for connection in self._connections)

    async def close(self) -> None:
        """Close the connections. Requests in flight are answered as unknown; queued ones are not answered."""
        self._closed = True
        tasks = [slot.connecting for slot in self._slots if slot.connecting]
        if self._wake_up:
            tasks.append(self._wake_up)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        self._unreachable.clear()

    # --- from the queue to the connections

    def _schedule(self) -> None:
        """Send queued requests as the capacity allows, some in each of the next turns of the event loop."""
        if not self._closed:
            self._sending.request()

    def _send_queued(self) -> int:
        """Send some of the queued requests; return how many turns of the event loop others have then."""
        if self._closed or not self._queue or not self._is_authorised():
            return 0
        now_ms, left = self._clock.now_ms(), _AT_ONCE
        for slot in self._slots:
            if slot.connection is not None and slot.connection.is_closed:
                slot.connection = None
            while self._queue and slot.connection is not None and (capacity := slot.capacity(now_ms)) > 0:
                if not left:
                    self._schedule()
                    return _AT_ONCE // _REQUESTS_A_TURN
                for _ in range(count := min(capacity, len(self._queue), left)):
                    self._send(slot.connection, self._queue.popleft())
                left -= count
        if self._queue:
            self._connect_next(now_ms)
        return (_AT_ONCE - left) // _REQUESTS_A_TURN

    def _send(self, connection: ServiceConnection[Request, Answer], pending: PendingRequest[Request, Answer]) -> None:
        if not pending.is_wanted():
            pending.skipped()
            return
        wire = self._wire(pending.request)
        if isinstance(wire, WireRequest):
            connection.send(pending, wire)
        else:
            pending.answered(wire)

    def _answer_all(self, answer: Answer) -> None:
        """Answer all queued requests, because none can be sent."""
        queue, self._queue = self._queue, deque()
        for pending in queue:
            pending.answered(answer)

    def _connect_next(self, now_ms: int) -> None:
        """Open the next connection, one at a time; if all slots back off, wait for the first back-off to end."""
        if any(slot.connecting or slot.is_warming_up for slot in self._slots):
            return
        for slot in self._slots:
            if (slot.connection is None or slot.connection.draining) and not slot.circuit.is_open(now_ms):
                slot.connecting = background.start(f"connection to {self._name}", self._connect(slot))
                return
        open_until = [slot.circuit.open_until_ms for slot in self._slots if slot.circuit.is_open(now_ms)]
        if open_until and self._wake_up is None:
            self._wake_up = background.start(f"back-off of {self._name}", self._wake_up_at(min(open_until)))

    async def _connect(self, slot: ConnectionSlot[Request, Answer]) -> None:
        connection: ServiceConnection[Request, Answer] = ServiceConnection(
            self._answers,
            partial(self._on_answer, slot),
            self._requeue,
            partial(self._on_change, slot),
            self._timeouts,
            self._max_unproven,
        )
        try:
            await connection.open(self._host, self._port, self._tls)
            self._connections.add(connection)
            slot.connection = connection
            self._unreachable.reached(self._host)
        except OSError as error:
            slot.circuit.trip(self._clock.now_ms())
            if not self._connections:
                self._unreachable.failed(self._host)
            logger.warning("no connection to the push service", host=self._host, error=_text(error))
        finally:
            slot.connecting = None
            self._schedule()

    async def _wake_up_at(self, time_ms: int) -> None:
        await self._clock.sleep_until(time_ms)
        self._wake_up = None
        self._schedule()

    # --- callbacks of the connections

    def _on_answer(
        self,
        slot: ConnectionSlot[Request, Answer],
        connection: ServiceConnection[Request, Answer],
        pending: PendingRequest[Request, Answer],
        token: str,
        answer: Answer,
    ) -> None:
        self._maintain(slot, connection, token, answer)
        pending.answered(answer)

    def _requeue(self, pending: PendingRequest[Request, Answer]) -> None:
        self._queue.appendleft(pending)
        self._schedule()

    def _on_change(self, slot: ConnectionSlot[Request, Answer], connection: ServiceConnection[Request, Answer]) -> None:
        """Back off if the connection closed before a request was accepted on it, unless for being idle."""
        if connection.is_closed:
            self._connections.discard(connection)
            if not connection.is_proven and not connection.is_idle:
                slot.circuit.trip(self._clock.now_ms())
        self._schedule()


class _Asked(Generic[Request, Answer]):
    """A request whose sender waits for the answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def is_wanted(self) -> bool:
        return not self.answer.done()

    def answered(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def skipped(self) -> None:
        """Nobody waits any more."""


def _text(error: OSError) -> str:
    return str(error) or type(error).__name__
