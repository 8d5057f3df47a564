"""uvicorn's server on accept loops of the service, which bound the connections of each listener."""

import asyncio
import contextlib
import functools
import socket
import sys
from collections.abc import Sequence

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from services.runtime.http.connections import HttpConnections, Refusal
from services.runtime.http.hand_over import HandOver
from services.runtime.http.protocol import HttpProtocol, refusal
from services.runtime.process import background
from services.runtime.process.logs import logger
from services.runtime.sockets.accepting import AcceptLoop

SEND_BUFFER_BYTES = 256 * 1024
"""Bytes of answers that the kernel keeps for a client that does not read."""

_TICK_S = 1.0
_USER_TIMEOUT_MS = 60_000
_REFUSALS: dict[Refusal, bytes] = {
    "address": refusal(503, "too many connections from this address"),
    "full": refusal(503, "too many connections"),
}


class HttpServer(uvicorn.Server):
    """Serves an application on listening sockets; `groups` holds the connections of each socket, in the same order.

    `hand_over` gives some of the connections to another process.
    """

    def __init__(
        self, config: uvicorn.Config, groups: Sequence[HttpConnections], hand_over: HandOver | None = None
    ) -> None:
        self._stopping = asyncio.Event()
        super().__init__(config)
        self._groups = groups
        self._hand_over = hand_over
        self._sweeping: list[asyncio.Task[None]] = []

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
        acceptors = [_Acceptor(self, group, self._hand_over) for group in self._groups]
        for acceptor, listener in zip(acceptors, sockets or [], strict=True):
            acceptor.open(listener)
        self.servers = acceptors  # type: ignore[assignment]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for task in self._sweeping:
            task.cancel()


class _Acceptor:
    """Accepts the connections of one listener, within the limits of their group; uvicorn closes it like a server."""

    def __init__(self, server: HttpServer, group: HttpConnections, hand_over: HandOver | None) -> None:
        self._server = server
        self._hand_over = hand_over
        self._group = group
        self._loop = AcceptLoop(group.name, self._accepted, spare_files=group.limits.spare_files)
        self._opening: set[asyncio.Task[None]] = set()

    def open(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if listener.family != socket.AF_UNIX:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.open(listener)

    def close(self) -> None:
        self._loop.close()
        if self._hand_over is not None:
            self._hand_over.close()

    async def wait_closed(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening)

    def _accepted(self, accepted: socket.socket, address: str) -> None:
        if self._hand_over is None:
            self._serve(accepted, address)
        else:
            self._hand_over.sort(accepted, functools.partial(self._serve, accepted, address))

    def _serve(self, accepted: socket.socket, address: str) -> None:
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
