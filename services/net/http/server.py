"""An HTTP listener as a service: an ASGI application behind uvicorn, on accept loops that bound its connections."""

import asyncio
import contextlib
import errno
import functools
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from services.errors import CarillonError, ConflictError
from services.net.http.connections import HttpConnections, HttpLimits, Refusal
from services.net.http.protocol import HttpProtocol, refusal
from services.net.sockets import AcceptLoop
from services.process import background
from services.process.clock import SteadyClock
from services.process.logs import logger

SEND_BUFFER_BYTES = 256 * 1024
"""Bytes of answers that the kernel buffers for a client that does not read."""

_TICK_S = 1.0
_USER_TIMEOUT_MS = 60_000
_REFUSALS: dict[Refusal, bytes] = {
    "address": refusal(503, "too many connections from this address"),
    "full": refusal(503, "too many connections"),
}


class HttpServer(uvicorn.Server):
    """Serves an application on listening sockets; `groups` holds the connections of each socket, in the same order."""

    def __init__(self, config: uvicorn.Config, groups: Sequence[HttpConnections]) -> None:
        self._stopping = asyncio.Event()
        super().__init__(config)
        self._groups = groups
        self._sweeping: list[asyncio.Task[None]] = []
        self.acceptors: list[_Acceptor] = []

    @property
    def should_exit(self) -> bool:
        return self._stopping.is_set()

    @should_exit.setter
    def should_exit(self, should_exit: bool) -> None:
        if should_exit:
            self._stopping.set()

    async def main_loop(self) -> None:
        """Do uvicorn's work of each second until the server stops. uvicorn itself wakes up ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._stopping.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        self._sweeping = [
            background.start_endless(f"sweep of {group.name} connections", group.sweep())
            for group in dict.fromkeys(self._groups)
        ]
        acceptors = [_Acceptor(self, group) for group in self._groups]
        for acceptor, listener in zip(acceptors, sockets or [], strict=True):
            acceptor.open(listener)
        self.acceptors = acceptors
        self.servers = acceptors  # type: ignore[assignment]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for task in self._sweeping:
            task.cancel()


class _Acceptor:
    """Accepts the connections of one listener, within the limits of their group; uvicorn closes it like a server."""

    def __init__(self, server: HttpServer, group: HttpConnections) -> None:
        self._server = server
        self._group = group
        self.loop = AcceptLoop(group.name, self._accepted, spare_files=group.limits.spare_files)
        self._opening: set[asyncio.Task[None]] = set()

    def open(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if listener.family != socket.AF_UNIX:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop.open(listener)

    def close(self) -> None:
        self.loop.close()

    async def wait_closed(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening)

    def _accepted(self, accepted: socket.socket, address: str) -> None:
        server = self._server
        protocol = HttpProtocol(server.config, server.server_state, server.lifespan.state, self._group)
        why = self._group.add(protocol, address)
        if why is not None:
            with contextlib.suppress(OSError):
                accepted.send(_REFUSALS[why], socket.MSG_DONTWAIT)
            accepted.close()
            return
        task = background.start("new HTTP connection", self._open_protocol(accepted, protocol))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_protocol(self, accepted: socket.socket, protocol: HttpProtocol) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(functools.partial(_same, protocol), accepted)
        except OSError as error:
            logger.debug("a connection ended while it was opened", error=str(error))
        finally:
            if protocol.transport is None:
                self._group.remove(protocol)
                accepted.close()


def _same(protocol: HttpProtocol) -> HttpProtocol:
    return protocol


# An HTTP listener as a service: an ASGI application behind uvicorn.

Asgi = Callable[[Any, Any, Any], Any]
GRACE_S = 10
"""Time in seconds that requests in progress have to end when the listener stops."""

_BACKLOG = 4096


class HttpListener:
    """Serves one application on one port; 0 chooses a free port, and `port` is its number once the service is ready.

    Listeners that are given the same `connections` share their limits. `shared` is a listening socket that is bound
    already, at which other processes may accept too (see `accept`).
    """

    def __init__(
        self,
        name: str,
        application: Asgi,
        host: str,
        port: int,
        connections: HttpConnections | None = None,
        shared: socket.socket | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        self._application = application
        if connections is None:
            connections = HttpConnections("api", HttpLimits(), SteadyClock())
        self._connections = connections
        self._shared = shared
        self._accepts = True
        self._server: _Server | None = None

    def accept(self, is_accepting: bool) -> None:
        """Accept new connections, or leave them to the other processes; those that are open stay."""
        self._accepts = is_accepting
        if self._server is not None:
            for acceptor in self._server.acceptors:
                acceptor.loop.suspend(not is_accepting)

    async def run(self, ready: asyncio.Event) -> None:
        listener = self._shared or listening_socket(self.name, self.host, self.port)
        self.port = listener.getsockname()[1]
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
        server = self._server = _Server(config, [self._connections])
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)  # uvicorn has no event for its start
            if server.started:
                self.accept(self._accepts)
                ready.set()
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            await serving
            listener.close()


def listening_socket(name: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address. The text of an error begins with `name`.

    ConflictError: another socket listens there. CarillonError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it answers wait 40 ms for an ACK
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        failure = ConflictError if error.errno == errno.EADDRINUSE else CarillonError
        raise failure(
            f"{name} cannot listen at {host}:{port}: {error.strerror}; set CARILLON_HOST or its port"
        ) from None
    listener.listen(_BACKLOG)
    return listener


class _Server(HttpServer):
    """uvicorn without signal handlers: the runner has its own."""

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()
