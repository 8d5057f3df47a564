"""An HTTP door in this process: any ASGI application behind uvicorn, as a service."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from services.runtime.errors import CarillonError

Asgi = Callable[[Any, Any, Any], Any]
GRACE_S = 10
"""How long requests under way may take when the door closes, seconds."""

KEEP_ALIVE_S = 75
"""How long an idle connection of a client stays open, seconds."""

_BACKLOG = 4096


class HttpDoor:
    """Serves one application on one port; port 0 takes a free one. `port` is the real one once it is ready."""

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
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            server_header=False,
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
    """uvicorn without its own signal handlers: the runner has them."""

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()
