"""A listener with small limits, a clock that tests move, and a bare client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from services.net.http.connections import HttpConnections, HttpLimits
from services.net.http.server import Asgi, HttpListener
from services.net.sockets import IsShared
from services.process.clock import ManualClock
from testkit.waiting import until_holds

BOUND_S = 10.0
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Serving:
    """A running listener. Its application counts the requests and answers once `answering` is set."""

    def __init__(self, limits: HttpLimits, answer: bytes, is_shared: IsShared, application: Asgi | None = None) -> None:
        self.clock = ManualClock(1_000_000)
        self.connections = HttpConnections("test", limits, self.clock, is_shared)
        self.answering = asyncio.Event()
        self.answering.set()
        self.requests = 0
        self._answer = answer
        self.listener = HttpListener("test", application or self._application, "127.0.0.1", 0, self.connections)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        await self.answering.wait()
        headers = [(b"content-length", str(len(self._answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._answer})

    async def client(self, address: str = "127.0.0.1") -> "Client":
        """Connect from this address of the host."""
        async with asyncio.timeout(BOUND_S):
            streams = await asyncio.open_connection("127.0.0.1", self.listener.port, local_addr=(address, 0))
        return Client(*streams)

    async def accepted(self, count: int) -> None:
        """Wait until this number of connections is open."""
        await until_holds(lambda: len(self.connections) == count)

    async def move(self, seconds: float) -> None:
        """Advance the clock and let the deadlines be checked."""
        self.clock.move(seconds)
        for _ in range(10):
            await asyncio.sleep(0)


class Client:
    """A client that sends bytes. Every wait has a bound."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Return the status and the body of the next answer."""
        async with asyncio.timeout(BOUND_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].split()[0])
            return int(head.split()[1]), await self._reader.readexactly(size)

    async def part(self, end: bytes) -> bytes:
        """Return what comes up to these bytes."""
        async with asyncio.timeout(BOUND_S):
            return await self._reader.readuntil(end)

    async def ended(self) -> bytes:
        """Return all that still comes, once the connection has ended."""
        async with asyncio.timeout(BOUND_S):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self.writer.close()


@asynccontextmanager
async def serving(
    limits: HttpLimits | None = None,
    answer: bytes = b"done",
    is_shared: IsShared = lambda _: False,
    application: Asgi | None = None,
) -> AsyncIterator[Serving]:
    """Run a listener with these limits while the block runs, with its own application unless another is given."""
    served = Serving(limits or HttpLimits(), answer, is_shared, application)
    running = asyncio.create_task(served.listener.run(ready := asyncio.Event()))
    await asyncio.wait_for(ready.wait(), BOUND_S)
    try:
        yield served
    finally:
        served.answering.set()
        running.cancel()
        for connection in list(served.connections.open):
            connection.abort()
        await asyncio.wait([running])
