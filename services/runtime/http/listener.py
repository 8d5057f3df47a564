"""An HTTP listener as a service: an ASGI application behind uvicorn."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import uvicorn

from services.runtime.errors import CarillonError
from services.runtime.http.connections import HttpConnections
from services.runtime.http.hand_over import HandedSockets, HandOver
from services.runtime.http.limits import HttpLimits
from services.runtime.http.server import HttpServer
from services.runtime.process.clock import SteadyClock

Asgi = Callable[[Any, Any, Any], Any]
GRACE_S = 10
"""Time in seconds that requests in progress have to end when the listener stops."""

_BACKLOG = 4096


class HttpListener:
    """Serves one application on one port; 0 chooses a free port, and `port` is its number once the service is ready.

    Listeners that are given the same `connections` share their limits. `hand_over` says which new connections go to
    another process.
    """

    def __init__(
        self,
        name: str,
        application: Asgi,
        host: str,
        port: int,
        connections: HttpConnections | None = None,
        hand_over: HandOver | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        self._application = application
        if connections is None:
            connections = HttpConnections("api", HttpLimits(), SteadyClock())
        self._connections = connections
        self._hand_over = hand_over

    async def run(self, ready: asyncio.Event) -> None:
        listener = self._bind()
        config = uvicorn.Config(
            self._application,
            interface="asgi3",
            loop="none",
            ws="none",
            lifespan="off",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=GRACE_S,
        )
        server = _Server(config, [self._connections], self._hand_over)
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


class HandedListener(HttpListener):
    """Serves one application on the connections that another process hands over at the Unix socket `socket_path`."""

    def __init__(self, name: str, application: Asgi, socket_path: Path, connections: HttpConnections) -> None:
        super().__init__(name, application, "", 0, connections)
        self._socket_path = socket_path

    def _bind(self) -> socket.socket:
        return cast(socket.socket, HandedSockets(self._socket_path))


class _Server(HttpServer):
    """uvicorn without signal handlers: the runner has its own."""

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()
