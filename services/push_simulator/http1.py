"""Connections of a simulator over HTTP/1.1, with faults in the place of answers."""

import asyncio
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import httptools

SILENCE = "silence"
CUT = "cut"
"""Faults: no answer, and the end of the connection; the message is lost in both cases."""

LOST_ANSWER = "lost"
"""Fault: the message is taken, and the connection ends in place of the answer."""

FAULTS = (SILENCE, CUT, LOST_ANSWER)


class SimulatorReply(NamedTuple):
    """An answer, and a fault in its place, "" for none."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    fault: str = ""


class Http1Handler(Protocol):
    """Answers the requests of connections. `connections`: those that are open. `kept_bytes`: of a request's body."""

    connections: "set[Http1Connection]"
    kept_bytes: int

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        """Return the reply. `fields`: the headers by lower-case names, with `:method` and `:path`."""
        ...


class Http1Connection(asyncio.Protocol):
    """One client's connection; its requests are answered in their order."""

    def __init__(self, handler: Http1Handler) -> None:
        self._handler = handler
        self._parser = httptools.HttpRequestParser(self)
        self._fields: list[tuple[str, str]] = []
        self._body = bytearray()
        self._path = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._handler.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def close(self) -> None:
        self._transport.close()

    # --- httptools

    def on_message_begin(self) -> None:
        self._fields, self._body, self._path = [], bytearray(), b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._body += body[: self._handler.kept_bytes - len(self._body)]

    def on_message_complete(self) -> None:
        method, path = self._parser.get_method().decode(), self._path.decode("latin-1")
        reply = self._handler.reply_to([(":method", method), (":path", path), *self._fields], bytes(self._body))
        if reply.fault in (CUT, LOST_ANSWER):
            self._transport.abort()
        elif not reply.fault:
            head = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
            head += [f"{name}: {value}" for name, value in (*reply.headers, ("content-length", str(len(reply.body))))]
            self._transport.write("\r\n".join([*head, "", ""]).encode() + reply.body)
