"""An HTTP listener as a service: an ASGI application behind uvicorn."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.runtime.errors import CarillonError

Asgi = Callable[[Any, Any, Any], Any]
GRACE_S = 10
"""How long requests in progress may take when the listener stops, seconds."""

KEEP_ALIVE_S = 75
"""How long an idle connection of a client stays open, seconds."""

_BACKLOG = 4096
_FRAMING = (b"content-length", b"transfer-encoding")


class HttpListener:
    """Serves one application on one port; 0 chooses a free port, and `port` is its number once the service is ready."""

    def __init__(self, name: str, application: Asgi, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port
        self._application = application

    async def run(self, ready: asyncio.Event) -> None:
        listener = self._bind()
        config = uvicorn.Config(
            self._application,
            interface="asgi3",
            loop="none",
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            if server.started:
                ready.set()
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            await serving
            listener.close()

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # asyncio sets TCP_NODELAY only where the protocol is named; without it answers wait 40 ms for an ACK
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            raise CarillonError(
                f"{self.name} cannot listen at {self.host}:{self.port}: {error.strerror}; set CARILLON_HOST or its port"
            ) from None
        listener.listen(_BACKLOG)
        self.port = listener.getsockname()[1]
        return listener


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the runner has its own."""

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which ignores offers to upgrade the connection.

    Java's HttpClient offers h2c with every request. The parser then stops before the body, and uvicorn would handle
    the request without one. This listener never upgrades a connection, so it reads on.
    """

    _resuming = False

    def data_received(self, data: bytes) -> None:
        try:
            self._unset_keepalive_if_required()
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._resume(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _resume(self, rest: bytes) -> None:
        """Read the rest with a new parser, which gets the headers that frame the body."""
        framing = [name + b": " + value for name, value in self.headers if name in _FRAMING]
        self.parser = httptools.HttpRequestParser(self)
        if framing:
            self.cycle.more_body = True
            self._resuming = True
            self.parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""]))
            self._resuming = False
        self.data_received(rest)

    def on_message_begin(self) -> None:
        if not self._resuming:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._resuming:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._resuming:
            super().on_headers_complete()
