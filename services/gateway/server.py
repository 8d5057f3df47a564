"""The devices' door: a WebSocket listener, what its connections do, and what goes out to them."""

import asyncio
import logging
import socket
from collections.abc import Coroutine
from random import Random
from typing import Any

import numpy
from picows import WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener, ws_create_server

from protos.delivery.v1.delivery_pb2 import AttachResponse, Send
from services.gateway.connection import Connection
from services.gateway.decide import Limits, overdue, retry_after_ms
from services.gateway.frames import PushFrames
from services.gateway.reception import Reception
from services.gateway.state import Connections
from services.runtime.clock import Clock
from services.runtime.device_protocol import MAX_FRAME_BYTES, SUBPROTOCOL, GoodbyeReason
from services.runtime.metrics import FRAMES_SENT

PATH = b"/device/v1"
BACKLOG = 4096

_CHUNK = 256
_SWEEP_MS = 1000
_STOP_S = 3.0
_SEND_BUFFER_BYTES = 64 * 1024
_USER_TIMEOUT_MS = 60_000
_REASONS: dict[str, GoodbyeReason] = {"replaced": "replaced", "unauthorized": "unauthorized", "draining": "draining"}


class Door:
    """A service: listens, greets devices, passes on what they say, and hands them what delivery sends.

    `port` is the real one once it is ready, also when 0 was asked for.
    """

    name = "gateway"

    def __init__(
        self,
        reception: Reception,
        connections: Connections[Connection],
        clock: Clock,
        random: Random,
        limits: Limits,
        *,
        host: str,
        port: int,
        share_port: bool,
    ) -> None:
        self.limits = limits
        self.port = port
        self._host = host
        self._share_port = share_port
        self._reception = reception
        self._connections = connections
        self._clock = clock
        self._random = random
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._draining = False
        self.now_ms = clock.now_ms

    async def run(self, ready: asyncio.Event) -> None:
        listener = _listen(self._host, self.port, self._share_port)
        self.port = listener.getsockname()[1]
        server = await ws_create_server(
            self._accept,
            sock=listener,
            backlog=BACKLOG,
            max_frame_size=4 * MAX_FRAME_BYTES,
            read_buffer_init_size=2048,
            websocket_handshake_timeout=self.limits.hello_ms / 1000,
            enable_auto_pong=False,
            use_aiofastnet=False,
            logger_name=_DeviceFaults(logging.getLogger("picows.server"), {}),
        )
        sweeping = asyncio.create_task(self._sweep())
        ready.set()
        try:
            await asyncio.wait([sweeping])
            sweeping.result()
        finally:
            server.close()
            sweeping.cancel()
            await self._drain()

    async def hand(self, response: AttachResponse) -> None:
        """Do what delivery says."""
        sent = 0
        for send in response.sends:
            sent += await self._send(send)
        FRAMES_SENT.inc(sent)
        for close in response.closes:
            connection = self._connections.find(close.connection)
            if connection is not None:
                connection.goodbye(_REASONS.get(close.reason, "draining"), close.reason)

    async def _send(self, send: Send) -> int:
        """Write the message to its connections that are still here; in chunks, so that others get their turn."""
        frames = PushFrames(send.message, send.expires_ms)
        connections = numpy.frombuffer(send.connections, "<u8").tolist()
        msgids = numpy.frombuffer(send.msgids, "<u8").tolist()
        same = frames.frame(msgids[0]) if len(msgids) == 1 else None
        sent = 0
        for start in range(0, len(connections), _CHUNK):
            if start:
                await asyncio.sleep(0)
            for index in range(start, min(start + _CHUNK, len(connections))):
                connection = self._connections.find(connections[index])
                if connection is not None:
                    connection.push(same or frames.frame(msgids[index]))
                    sent += 1
        return sent

    def _accept(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener | None:
        if request.path.split(b"?", 1)[0] != PATH or self._draining:
            return None
        asked = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        extra = {"Sec-WebSocket-Protocol": SUBPROTOCOL} if SUBPROTOCOL in asked else None
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(extra), Connection(self))

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)
        self._empty.clear()

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    def leaving(self, connection: Connection, reason: str) -> None:
        self._reception.leaving(connection, reason)

    def received(self, connection: Connection, payload: bytes) -> None:
        self._reception.received(connection, payload)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep_until(self.now_ms() + _SWEEP_MS)
            now_ms = self.now_ms()
            for each in list(self._open):
                welcomed = each.session is not None
                match overdue(now_ms, each.last_ms, welcomed, each.paused_ms, each.closing_ms, self.limits):
                    case "idle":
                        each.goodbye("idle")
                    case "slow" | "gone" as reason:
                        each.abort(reason)

    async def _drain(self) -> None:
        """Say goodbye to all and wait a moment until they have gone."""
        self._draining = True
        count = len(self._open)
        for index, connection in enumerate(list(self._open)):
            connection.goodbye("draining", retry_after_ms=retry_after_ms(count, self._random))
            if index % _CHUNK == 0:
                await asyncio.sleep(0)
        try:
            async with asyncio.timeout(_STOP_S):
                while self._tasks:
                    await asyncio.wait(self._tasks)
                if self._open:
                    await self._empty.wait()
        except TimeoutError:
            for connection in list(self._open):
                connection.abort("draining")


class _DeviceFaults(logging.LoggerAdapter[logging.Logger]):
    """What a device does wrong is no error of the service; failures inside it still are (`exception`)."""

    def error(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)

    def info(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)


def _listen(host: str, port: int, share_port: bool) -> socket.socket:
    """A listening socket whose connections keep little in the kernel and notice a peer that is gone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=share_port)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    return listener
