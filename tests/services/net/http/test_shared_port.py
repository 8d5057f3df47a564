"""A port at which two processes accept: one serves the pages, the other answers while that one is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from services.net.http.connections import HttpConnections, HttpLimits
from services.net.http.operations import NAME, Operations
from services.net.http.server import HttpListener, listening_socket
from services.process.clock import ManualClock
from testkit import plain_http
from tests.services.net.http.serving import BOUND_S


class Port:
    """The process that holds the port, and the other one, which answers each request with its path and the client."""

    def __init__(self) -> None:
        self._socket = listening_socket(NAME, "127.0.0.1", 0)
        self.operations = Operations("127.0.0.1", 0, shared=self._socket)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @asynccontextmanager
    async def other_process(self) -> AsyncIterator[None]:
        connections = HttpConnections("other", HttpLimits(), ManualClock(0))
        async with running(HttpListener("other", _pages, "", 0, connections, self._socket.dup())):
            self.operations.accept(False)
            yield
        self.operations.accept(True)

    async def get(self, path: str) -> httpx.Response:
        async with plain_http.async_client(timeout=BOUND_S) as client:
            return await client.get(self.url + path)


async def _pages(scope: Any, receive: Any, send: Any) -> None:
    body = f"{scope['path']} {scope['client'][0]}".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def running(service: Any) -> AsyncIterator[None]:
    ready = asyncio.Event()
    task = asyncio.create_task(service.run(ready))
    try:
        async with asyncio.timeout(BOUND_S):
            await ready.wait()
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    port = Port()
    async with running(port.operations):
        yield port


async def test_the_other_process_answers_everything_while_it_is_there(port: Port) -> None:
    port.operations.set_ready()
    async with port.other_process():
        for path in ("/", "/pushes", "/healthz"):
            assert (await port.get(path)).text == f"{path} 127.0.0.1"


async def test_without_the_other_process_pages_are_refused_and_health_is_answered(port: Port) -> None:
    starting = await port.get("/")
    assert (starting.status_code, starting.json()) == (503, {"status": "starting"})
    port.operations.set_ready()
    for _ in range(2):
        refused = await port.get("/")
        assert (refused.status_code, refused.json()["problems"]) == (503, {"console": "its process is starting"})
        assert (await port.get("/healthz?x=1")).json() == {"status": "ready"}
        async with port.other_process():
            assert (await port.get("/apps")).text == "/apps 127.0.0.1"


async def test_a_connection_is_not_kept_for_the_time_when_the_other_process_is_back(port: Port) -> None:
    port.operations.set_ready()
    async with plain_http.async_client(timeout=BOUND_S) as client:
        assert (await client.get(f"{port.url}/livez")).headers["connection"] == "close"
        async with port.other_process():
            for _ in range(2):  # on one connection
                kept = await client.get(f"{port.url}/livez")
                assert (kept.text, "connection" in kept.headers) == ("/livez 127.0.0.1", False)


async def test_connections_that_wait_while_nobody_accepts_are_answered(port: Port) -> None:
    port.operations.set_ready()
    port.operations.accept(False)
    asked = [asyncio.create_task(port.get("/healthz")) for _ in range(3)]
    await asyncio.sleep(0)
    port.operations.accept(True)
    assert [answer.json() for answer in await asyncio.gather(*asked)] == [{"status": "ready"}] * 3
