"""Answers of the HTTP server in as few writes as possible."""

import asyncio
from collections.abc import Callable

_CONTINUE = b"HTTP/1.1 100 "
"""Beginning of the interim answer that uvicorn writes before the head, for a client that waits for it with its body."""


class AnswerTransport:
    """The transport of one answer with a body. It writes the head together with the first part of the body.

    uvicorn writes them one after the other: two system calls and two packets, each of which wakes up the client.
    """

    __slots__ = ("_head", "_transport", "close", "is_closing")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        """`close` is called behind the last answer of the connection."""
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
