"""uvicorn's HTTP protocol with bounds of heads, pipelining, idle time and unread answers."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from services.net.http.connections import HttpConnections

# Answers of the HTTP server in as few writes as possible.

_CONTINUE = b"HTTP/1.1 100 "
"""Beginning of the interim answer that uvicorn writes before the head, for a client that waits for it with its body."""


class AnswerTransport:
    """The transport of one answer with a body. It writes the head together with the first part of the body.

    uvicorn writes them one after the other: two system calls and two packets, each of which wakes up the client.
    """

    __slots__ = ("_head", "_transport", "close", "is_closing")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        """`close` is called after the last answer of the connection."""
        self._transport = transport
        self._head: bytes | None = b""
        self.close = close
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.write(self._head + data)
            self._head = None
        elif self._head is None or data.startswith(_CONTINUE):
            self._transport.write(data)
        else:
            self._head = data


_FRAMING = (b"content-length", b"transfer-encoding")
_COLON_SPACE_AND_LINE_END = 4
_MAX_DISCARDED_BYTES = 256 * 1024


class HttpProtocol(HttpToolsProtocol):
    """One connection of an HTTP client, bounded by the limits of its group.

    It ignores offers to upgrade the connection. Java's HttpClient offers h2c with every request. The parser then stops
    before the body, and uvicorn would handle the request without one; this protocol reads on.

    A request that has arrived whole is answered, whatever comes behind it: bytes that are no HTTP request, a request
    that is refused, or the end of the client's sending direction. Then the answers that are due are written first.
    """

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], connections: HttpConnections
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._group = connections
        self._limits = connections.limits
        self._resuming = False
        self._refusal: tuple[int, str] | None = None
        self._is_refusal_due = False
        self._client_ended = False
        self._running: RequestResponseCycle | None = None
        self._in_head = False
        self._is_idle = False
        self._message_complete = True
        self._head_bytes = 0
        self._head_count = 0
        self._made_progress = False
        self._framing_bytes = 0
        self._discarded_bytes = 0
        self._deadline_ms: int | None = None
        self._unsent_bytes = 0
        self._unsent_since_ms = 0
        self._closing_since_ms: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _PipelineFlow(transport, self.pipeline)
        self._deadline_ms = self._group.now_ms() + self._limits.head_ms

    def connection_lost(self, exc: Exception | None) -> None:
        self._group.remove(self)
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn notifies only the last request of a pipeline.
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the end of the client's sending direction.

        Return whether the connection stays open because answers are due.
        """
        self._client_ended = True
        if self.transport.is_closing():
            return False
        if self._refusal is None and (self._is_in_body() or self._in_head):
            self._refuse(HTTPStatus.BAD_REQUEST, "the connection ended inside the request")
        if self._is_streaming():
            return False
        if not self._is_answer_due():
            return False
        self.cycle.keep_alive = False
        if self._running is not None:
            self._running.message_event.set()  # `receive` returns another empty body
        self._deadline_ms = self._group.now_ms() + self._limits.half_closed_ms
        return True

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            self._discard(data)
            return
        if self._is_idle:
            self._is_idle = False
            self._deadline_ms = self._group.now_ms() + self._limits.head_ms
        self._made_progress = False
        self._feed(data)
        if self._refusal is not None:
            return
        if self._made_progress:
            self._framing_bytes = 0
            return
        # The parser has reported nothing yet: the data is a part of a head, of trailers, or of empty lines.
        self._framing_bytes += len(data)
        if self._framing_bytes > self._limits.head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, self._too_large())

    def _discard(self, data: bytes) -> None:
        self._discarded_bytes += len(data)
        if self._discarded_bytes <= _MAX_DISCARDED_BYTES:
            return
        if self._is_answer_due():
            self.flow.pause_reading()
        else:
            self.transport.abort()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._resume(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(*(self._refusal or (HTTPStatus.BAD_REQUEST, "this is no HTTP request")))

    def _resume(self, rest: bytes) -> None:
        """Read the rest with a new parser, which gets the headers that frame the body."""
        framing = [name + b": " + value for name, value in self.headers if name in _FRAMING]
        self.parser = httptools.HttpRequestParser(self)
        if framing:
            self.cycle.more_body = True
            self._message_complete = False
            self._resuming = True
            self.parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""]))
            self._resuming = False
        self._feed(rest)

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        self._in_head, self._message_complete = True, False
        self._head_bytes = self._head_count = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            self._count_head_bytes(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._resuming:
            return
        self._head_count += 1
        if self._head_count > self._limits.headers:
            self._stop_parsing(f"a request has at most {self._limits.headers} headers")
        self._count_head_bytes(len(name) + len(value) + _COLON_SPACE_AND_LINE_END)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._resuming:
            return
        if len(self.pipeline) >= self._limits.pipelined:
            self._stop_parsing(f"at most {self._limits.pipelined} requests may wait for the answer to an earlier one")
        self._made_progress = True
        self._in_head = False
        self._deadline_ms = None
        self._group.set_busy(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._made_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._made_progress = True
        self._message_complete = True
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._become_idle()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["method"] != "HEAD":
            cycle.transport = AnswerTransport(self.transport, self._close_after_answer)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Begin the next pipelined request, or wait for one. This replaces uvicorn's way, whose time-out for an idle
        connection ends with the first byte that comes.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._is_refusal_due:
            self._end_refused()
        elif self._message_complete:
            self._become_idle()
        else:
            # The rest of a body that was answered early, or the beginning of the next head.
            self._deadline_ms = self._group.now_ms() + self._limits.head_ms
            self._group.set_waiting(self)
        self.flow.resume_reading()

    def end_if_overdue(self, now_ms: int) -> None:
        if self.transport is None:
            return
        if self._is_unread(now_ms):
            self._group.count_closed("unread")
            self.transport.abort()
        elif self._unsent_bytes:
            return
        elif self.transport.is_closing() or (self._refusal is not None and not self._is_answer_due()):
            self._closing_since_ms = self._closing_since_ms or now_ms
            if now_ms >= self._closing_since_ms + self._limits.closing_ms:
                self.transport.abort()
        elif self._deadline_ms is not None and now_ms >= self._deadline_ms:
            self._end_late()

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _is_unread(self, now_ms: int) -> bool:
        """Return whether the client reads its answer too slowly: less than `write_bytes` in `write_ms`."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes == 0 or unsent_bytes <= self._unsent_bytes - self._limits.write_bytes or not self._unsent_bytes:
            self._unsent_bytes, self._unsent_since_ms = unsent_bytes, now_ms
            return False
        self._unsent_bytes = max(self._unsent_bytes, unsent_bytes)
        return now_ms >= self._unsent_since_ms + self._limits.write_ms

    def _become_idle(self) -> None:
        self._is_idle = True
        self._deadline_ms = self._group.now_ms() + self._limits.idle_ms
        self._group.set_waiting(self)

    def _end_late(self) -> None:
        if self._in_head and not self._client_ended:
            seconds = self._limits.head_ms / 1000
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no complete request head within {seconds:g} s")
        else:
            self._group.count_closed("idle")
            self.transport.close()

    def _count_head_bytes(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes:
            self._stop_parsing(self._too_large())

    def _too_large(self) -> str:
        return f"the request line and the headers are larger than {self._limits.head_bytes} bytes"

    def _stop_parsing(self, desc: str) -> None:
        self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, desc
        raise ValueError(desc)

    def _refuse(self, status: int, desc: str) -> None:
        """Answer with the error behind the answers that are due, close the connection, and discard further data.

        Bytes behind a whole request in which no other one has begun get no answer: a client would take it for the
        answer to its next request.
        """
        self._refusal = status, desc
        self._group.count_closed("head")
        if self.transport.is_closing():
            return
        is_request = self._is_in_body() or self._head_bytes > 0
        if self._is_in_body():
            self._drop_incomplete()
        if not self._is_answer_due():
            self._end_refused()
            return
        self._is_refusal_due = is_request
        if not is_request:
            newest = self.pipeline[0][0] if self.pipeline else self._running
            assert newest is not None
            newest.keep_alive = False

    def _drop_incomplete(self) -> None:
        """Stop handling the newest request, because its body cannot be read."""
        cycle = self.cycle
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
        elif not cycle.response_complete:
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False  # nothing can be written any more
            cycle.message_event.set()

    def _end_refused(self) -> None:
        """Write the refusal, unless an answer to the same request has begun, and close the connection."""
        self._is_refusal_due = False
        self._group.set_waiting(self)
        has_begun = self._is_in_body() and self.cycle.response_started
        if self._refusal is not None and not has_begun:
            self.transport.write(refusal(*self._refusal))
        if has_begun and not self.cycle.response_complete:
            self.transport.close()
        else:
            self._end_sending()

    def _close_after_answer(self) -> None:
        """Close the connection behind an answer that is the last one."""
        self.pipeline.clear()
        self._is_refusal_due = False
        if self._refusal is None:
            self.transport.close()
        else:
            self._group.set_waiting(self)
            self._end_sending()

    def _end_sending(self) -> None:
        """Close the connection. Closing with unread data would reset it, and the client might not see the answer."""
        if self.transport.can_write_eof() and not self._client_ended:
            self.transport.write_eof()
        else:
            self.transport.close()

    def _is_in_body(self) -> bool:
        return not (self._message_complete or self._in_head)

    def _is_answer_due(self) -> bool:
        """Return whether a request that has arrived whole is not answered yet."""
        running = self._running
        return bool(self.pipeline) or (
            running is not None and not running.response_complete and not running.disconnected
        )

    def _is_streaming(self) -> bool:
        """Return whether an answer without a known end has begun: its client may have left for good."""
        running = self._running
        return running is not None and bool(running.chunked_encoding) and not running.response_complete


class _PipelineFlow(FlowControl):
    """uvicorn's flow control, which reads nothing while a pipelined request waits for an earlier one."""

    def __init__(self, transport: asyncio.Transport, pipeline: Any) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


def refusal(status: int, desc: str) -> bytes:
    """Return a whole answer with the error, after which the connection closes."""
    body = json.dumps({"result": int(status), "desc": desc}, separators=(",", ":")).encode()
    head = [
        b"content-type: application/json;charset=utf-8\r\n",
        b"content-length: %d\r\n" % len(body),
        b"connection: close\r\n\r\n",
    ]
    return b"".join([STATUS_LINE[status], *head, body])
