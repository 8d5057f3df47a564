"""The devices' door: lets them in, sees to it that they keep to the rules, and hands them what delivery sends."""

import asyncio
import contextlib
from collections.abc import Coroutine
from random import Random
from typing import Any

import numpy

from protos.delivery.v1.delivery_pb2 import AttachResponse, Send
from services.domain.device_protocol import GoodbyeReason
from services.gateway.acceptor import Acceptor, listen
from services.gateway.certificate import Certificate
from services.gateway.connection import Connection
from services.gateway.connections import Connections
from services.gateway.decide import Limits, Room, drained_ms, later_ms, overdue, retry_after_ms
from services.gateway.handshake import Reception
from services.gateway.push_frames import PushFrames
from services.runtime.process.clock import Clock
from services.runtime.process.metrics import FRAMES_SENT, REFUSED

_CHUNK = 256
_REFUSED_AT_ONCE = 256
_SWEEP_MS = 1000
_DRAIN_S = 17.0
_STOP_S = 3.0
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
        room: Room,
        certificate: Certificate | None,
        *,
        host: str,
        port: int,
        share_port: bool,
    ) -> None:
        self.limits = limits
        self.port = port
        self._room = room
        self._certificate = certificate
        self._host = host
        self._share_port = share_port
        self._reception = reception
        self._connections = connections
        self._clock = clock
        self._random = random
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._draining = 0
        self.now_ms = clock.now_ms

    async def run(self, ready: asyncio.Event) -> None:
        listener = listen(self._host, self.port, self._share_port)
        self.port = listener.getsockname()[1]
        acceptor = Acceptor(listener, self, self.limits, self._certificate)
        acceptor.open()
        sweeping = asyncio.create_task(self._sweep())
        ready.set()
        try:
            await asyncio.wait([sweeping])
            sweeping.result()
        finally:
            await self._drain()
            sweeping.cancel()
            acceptor.close()

    async def hand(self, response: AttachResponse) -> None:
        """Do what delivery says."""
        sent = 0
        for send in response.sends:
            sent += await self._send(send)
        FRAMES_SENT.inc(sent)
        for close in response.closes:
            connection = self._connections.find(close.connection)
            if connection is not None:
                reason = _REASONS.get(close.reason, "draining")
                later = later_ms(self._random) if reason == "draining" else None
                connection.goodbye(reason, close.reason, retry_after_ms=later)

    async def _send(self, send: Send) -> int:
        """Write the message to its connections that are still here; in chunks, so that others get their turn."""
        frames = PushFrames(send.message, send.expires_ms)
        connections = numpy.frombuffer(send.connections, "<u8").tolist()
        msgids = numpy.frombuffer(send.msgids, "<u8").tolist()
        same = frames.frame(msgids[0]) if len(msgids) == 1 else None
        if same is not None:
            msgids *= len(connections)
        sent = 0
        for start in range(0, len(connections), _CHUNK):
            if start:
                await asyncio.sleep(0)
            now_ms = self.now_ms()
            for index in range(start, min(start + _CHUNK, len(connections))):
                connection = self._connections.find(connections[index])
                if connection is not None:
                    connection.push(same or frames.frame(msgids[index]), msgids[index], now_ms)
                    sent += 1
        return sent

    def connection(self) -> Connection:
        return Connection(self)

    def crowded(self, sockets: int) -> bool:
        inside = min(len(self._connections), self._room.connections)
        full = inside == self._room.connections
        return sockets - inside >= (min(self._room.anteroom, _REFUSED_AT_ONCE) if full else self._room.anteroom)

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)
        self._empty.clear()
        if self._draining:
            connection.goodbye("draining", retry_after_ms=self._return_ms())
        elif len(self._connections) >= self._room.connections:
            REFUSED.labels("full").inc()
            connection.goodbye("draining", "no room", retry_after_ms=later_ms(self._random))

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
            if self._certificate is not None:
                self._certificate.renew()
            for index, each in enumerate(list(self._open)):
                if index % _CHUNK == 0:
                    await asyncio.sleep(0)
                match overdue(self.now_ms(), each, self.limits):
                    case "idle":
                        each.goodbye("idle")
                    case "unacknowledged" as fact:
                        each.goodbye("idle", fact, fact=fact)
                    case "slow" | "gone" as reason:
                        each.abort(reason)

    async def _drain(self) -> None:
        """Say goodbye to all, not faster than they may come back, and wait a moment until they have gone."""
        self._draining = max(1, len(self._open))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._say_goodbye()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                while self._tasks:
                    await asyncio.wait(self._tasks)
                if self._open:
                    await self._empty.wait()
        for connection in list(self._open):
            connection.abort("draining")

    async def _say_goodbye(self) -> None:
        began_ms = self.now_ms()
        for index, connection in enumerate(list(self._open)):
            await self._clock.sleep_until(began_ms + drained_ms(index, self._draining, self.limits.drain_per_s))
            if index % _CHUNK == 0:
                await asyncio.sleep(0)
            connection.goodbye("draining", retry_after_ms=self._return_ms())

    def _return_ms(self) -> int:
        return retry_after_ms(self._draining, self.limits.drain_per_s, self._random)
