"""Connections that one process accepts and another answers: by their first bytes, and only where it takes them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.net.http.connections import HttpConnections, HttpLimits
from services.net.http.hand_over import _MAX_WAITING, HandedSockets, HandOver
from services.net.http.operations import Operations, is_operation
from services.net.http.server import HandedListener
from services.process.clock import ManualClock
from testkit import plain_http
from testkit.waiting import until_holds
from tests.services.net.http.serving import BOUND_S


class OtherProcess:
    """The process behind the port: it answers each request with its path and the client's address."""

    def __init__(self, socket_path: Path) -> None:
        self.connections = HttpConnections("other", HttpLimits(), ManualClock(0))
        self.listener = HandedListener("other", self._application, socket_path, self.connections)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
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
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "pages"


@pytest.fixture
async def operations(socket_path: Path) -> AsyncIterator[Operations]:
    """A process that hands requests for pages over to another process."""
    operations = Operations("127.0.0.1", 0, hand_over=HandOver(socket_path, is_operation))
    async with running(operations):
        yield operations


async def fetch(operations: Operations, path: str) -> httpx.Response:
    async with plain_http.async_client() as client:
        return await client.get(f"http://127.0.0.1:{operations.port}{path}")


async def test_pages_go_to_the_other_process_and_operations_stay(operations: Operations, socket_path: Path) -> None:
    operations.set_ready()
    other = OtherProcess(socket_path)
    async with running(other.listener), plain_http.async_client() as client:
        for path in ("/", "/pushes", "/healthz/", "/healthzz"):
            answer = await client.get(f"http://127.0.0.1:{operations.port}{path}")
            assert answer.text == f"{path} 127.0.0.1"
        assert len(other.connections) == 1
    health = await fetch(operations, "/healthz?x=1")
    assert (health.json(), health.headers["connection"]) == ({"status": "ready"}, "close")


async def test_without_the_other_process_pages_are_refused_and_operations_go_on(
    operations: Operations, socket_path: Path
) -> None:
    starting = await fetch(operations, "/")
    assert (starting.status_code, starting.json()) == (503, {"status": "starting"})
    operations.set_ready()
    for _ in range(2):
        refused = await fetch(operations, "/")
        assert (refused.status_code, refused.json()["problems"]) == (503, {"console": "its process is starting"})
        assert refused.headers["connection"] == "close"
        assert (await fetch(operations, "/healthz")).status_code == 200
        async with running(OtherProcess(socket_path).listener):
            assert (await fetch(operations, "/apps")).text == "/apps 127.0.0.1"
        # The socket's file is still there, and no process listens.


async def test_a_connection_waits_for_its_first_bytes(operations: Operations, socket_path: Path) -> None:
    operations.set_ready()
    async with running(OtherProcess(socket_path).listener):
        for asked, expected in ((b"/livez", b"alive"), (b"/apps", b"/apps 127.0.0.1")):
            reader, writer = await asyncio.open_connection("127.0.0.1", operations.port)
            await asyncio.sleep(0)
            writer.write(b"GET " + asked + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(BOUND_S):
                assert expected in await reader.read()
            writer.close()


async def test_silent_connections_beyond_the_bound_go_to_the_other_process(
    operations: Operations, socket_path: Path
) -> None:
    operations.set_ready()
    other = OtherProcess(socket_path)
    async with running(other.listener):
        with contextlib.ExitStack() as stack:
            for _ in range(_MAX_WAITING + 3):
                stack.enter_context(socket.create_connection(("127.0.0.1", operations.port)))
            await until_holds(lambda: len(other.connections) == 3)


async def test_a_client_that_disconnects_before_its_request_leaves_no_connection(
    operations: Operations, socket_path: Path
) -> None:
    operations.set_ready()
    other = OtherProcess(socket_path)
    async with running(other.listener):
        socket.create_connection(("127.0.0.1", operations.port)).close()
        assert (await fetch(operations, "/apps")).status_code == 200
        await until_holds(lambda: len(other.connections) == 0)


@pytest.fixture
def asking() -> Iterator[list[socket.socket]]:
    """Connections with a request for a page, more than may wait at a socket."""
    pairs = [socket.socketpair() for _ in range(40)]
    with contextlib.ExitStack() as stack:
        for client, accepted in pairs:
            stack.enter_context(client)
            stack.enter_context(accepted)
            client.send(b"GET / HTTP/1.1\r\n")
        yield [accepted for _, accepted in pairs]


async def test_connections_wait_for_space_at_a_busy_process(socket_path: Path, asking: list[socket.socket]) -> None:
    inlet, hand_over, kept = HandedSockets(socket_path), HandOver(socket_path, is_operation), list[None]()
    inlet.setblocking(False)
    hand_over.is_open = True
    for accepted in asking:
        hand_over.sort(accepted, lambda: kept.append(None))
    taken = list[socket.socket]()

    def all_are_taken() -> bool:
        with contextlib.suppress(BlockingIOError):
            taken.append(inlet.accept()[0])
        return len(taken) == len(asking)

    await until_holds(all_are_taken)
    assert not kept
    for connection in taken:
        connection.close()
    hand_over.close()
    inlet.close()


async def test_a_process_that_takes_nothing_for_long_gets_nothing_more(
    socket_path: Path, asking: list[socket.socket]
) -> None:
    inlet, hand_over, kept = HandedSockets(socket_path), HandOver(socket_path, is_operation, unsent_s=0), list[None]()
    hand_over.is_open = True
    for accepted in asking:
        hand_over.sort(accepted, lambda: kept.append(None))
    sent = sum(accepted.fileno() == -1 for accepted in asking)
    assert 0 < sent < len(asking)
    await until_holds(lambda: len(kept) == len(asking) - sent)
    hand_over.close()
    inlet.close()


@pytest.mark.parametrize(
    ("head", "is_own"),
    [
        (b"GET /healthz HTTP/1.1\r\n", True),
        (b"HEAD /livez HTTP/1.1\r\n", True),
        (b"GET /livez?name=x HTTP/1.1\r\n", True),
        (b"GET /livez", True),
        (b"GET /livezx HTTP/1.1\r\n", False),
        (b"GET /metrics HTTP/1.1\r\n", False),
        (b"POST /healthz HTTP/1.1\r\n", False),
        (b"GET / HTTP/1.1\r\n", False),
        (b"GE", False),
        (b"", False),
        (b"\xff\xfe \xff", False),
    ],
)
def test_operations_are_known_by_the_first_bytes(head: bytes, is_own: bool) -> None:
    assert is_operation(head) == is_own
