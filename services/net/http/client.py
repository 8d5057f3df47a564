"""An HTTP/1.1 client connection to servers of others, such as push services, which may answer anything or nothing."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, cast

import httptools

MAX_ANSWER_BYTES = 65_536
"""Upper bound of an answer with its head, where none other is set; what is longer is not read."""

ANSWER_S = 10.0


class NoAnswerError(Exception):
    """A request may have arrived, and there is no answer; the text says why."""


class HttpAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


Answered: TypeAlias = Callable[[HttpAnswer | NoAnswerError], None]
"""Takes the answer to a request, or why there is none."""


class HttpClientConnection(asyncio.Protocol):
    """One connection to a server of others, for one request at a time; nothing that the server sends can do harm."""

    def __init__(self, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answered: Answered | None = None
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._received = 0
        self._has_head = False
        self._is_reusable = True

    @property
    def is_usable(self) -> bool:
        return self._is_reusable and self._transport is not None and not self._transport.is_closing()

    async def post(self, request: bytes) -> HttpAnswer:
        """Send a request and return its answer. NoAnswerError."""
        answer: asyncio.Future[HttpAnswer | NoAnswerError] = asyncio.get_running_loop().create_future()
        self.send(request, lambda found: None if answer.done() else answer.set_result(found))
        found = await answer
        if isinstance(found, NoAnswerError):
            raise found
        return found

    def send(self, request: bytes, answered: Answered) -> None:
        """Send a request; `answered` is called once, also where the connection was closed before the answer."""
        assert self._transport is not None
        self._answered = answered
        self._headers, self._body, self._received, self._has_head = {}, bytearray(), 0, False
        self._transport.write(request)
        loop = asyncio.get_running_loop()
        self._deadline_s = loop.time() + ANSWER_S
        if self._timer is None:
            self._timer = loop.call_at(self._deadline_s, self._check_deadline)

    def close(self) -> None:
        self._is_reusable = False
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fail(f"connection lost: {exc or 'closed by the service'}")

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._answered is None:  # nothing was asked
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"no HTTP answer: {type(error).__name__}")
            self.close()
        if self._received > self._max_answer_bytes:
            self._fail("the answer is too long")
            self.close()

    # --- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_reusable = self._parser.should_keep_alive()
            self._complete()

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() >= 200
        if not self._has_head:  # an interim answer: the final one follows
            self._headers = {}

    # --- the end of a request

    def _check_deadline(self) -> None:
        """End the request if its time is over; one timer serves the requests of a connection one after the other."""
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._answered is None:
            return
        if loop.time() < self._deadline_s:
            self._timer = loop.call_at(self._deadline_s, self._check_deadline)
        else:
            self._is_reusable = False
            self._end(NoAnswerError(f"no answer within {ANSWER_S:g} s"))

    def _complete(self) -> None:
        self._end(HttpAnswer(self._parser.get_status_code(), self._headers, bytes(self._body)))

    def _fail(self, reason: str) -> None:
        """End the request. Once its head has come, the request counts as answered, even if the body is cut off."""
        self._is_reusable = False
        if self._has_head:
            self._complete()
        else:
            self._end(NoAnswerError(reason))

    def _end(self, found: HttpAnswer | NoAnswerError) -> None:
        if self._answered is not None:
            answered, self._answered = self._answered, None
            answered(found)


class IdleConnections:
    """Connections to one server that wait for a further request."""

    def __init__(self) -> None:
        self._idle: list[tuple[float, HttpClientConnection]] = []

    def __bool__(self) -> bool:
        return bool(self._idle)

    def take(self) -> HttpClientConnection | None:
        """Return a connection that may be used, if there is one."""
        while self._idle:
            _, connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    def put(self, connection: HttpClientConnection, now_s: float) -> None:
        if connection.is_usable:
            self._idle.append((now_s, connection))
        else:
            connection.close()

    def close(self, before_s: float = float("inf")) -> None:
        """Close the connections that had no request since then."""
        for since_s, connection in self._idle:
            if since_s < before_s:
                connection.close()
        self._idle = [item for item in self._idle if item[0] >= before_s and item[1].is_usable]
