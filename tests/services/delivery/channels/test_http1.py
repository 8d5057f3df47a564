"""Requests to one server over HTTP/1.1 and TLS: connections that are kept, closed, refused and lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from services.delivery.channels import http1
from services.delivery.channels.http1 import Http1Server
from services.errors import UnavailableError
from services.net.http.client import NoAnswerError
from services.process.clock import ManualClock
from services.process.metrics import CHANNEL_UNREACHABLE
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.http1 import CUT, Http1Connection, SimulatorReply
from testkit.waiting import until_holds


class EchoServer:
    """Answers with the body, or as its path says; `seen`: the headers of requests."""

    kept_bytes = 1 << 20

    def __init__(self) -> None:
        self.connections: set[Http1Connection] = set()
        self.opened = 0
        self.seen: list[dict[str, str]] = []

    def connection(self) -> Http1Connection:
        self.opened += 1
        return Http1Connection(self)

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        headers = dict(fields)
        self.seen.append(headers)
        if headers[":path"] == "/long":
            return SimulatorReply(200, [], b"x" * 1_000_000)
        return SimulatorReply(200, [], body, CUT if headers[":path"] == "/cut" else "")


@contextlib.asynccontextmanager
async def running(server: EchoServer) -> AsyncIterator[tuple[str, str]]:
    """Yield the server's URL, and the certificate to trust."""
    certificate = SelfSigned.make("127.0.0.1")
    context = certificate.server_context(["http/1.1"])
    listening = await asyncio.get_running_loop().create_server(server.connection, "127.0.0.1", 0, ssl=context)
    yield f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}", certificate.certificate_pem
    listening.close()
    for connection in list(server.connections):
        connection.close()


async def post(to: Http1Server, path: str = "/a", body: bytes = b"{}") -> bytes:
    return (await to.post(await to.connect(), path, {"content-type": "application/json"}, body)).body


async def test_a_connection_is_used_again_and_closed_once_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "IDLE_S", 0.02)
    server = EchoServer()
    async with running(server) as (url, authority):
        to = Http1Server("test", url, ManualClock(0), authority)
        assert [await post(to, body=b"1"), await post(to, body=b"2")] == [b"1", b"2"]
        assert server.opened == 1
        first = server.seen[0]
        assert (first[":method"], first[":path"], first["content-type"]) == ("POST", "/a", "application/json")
        assert first["host"] == url.removeprefix("https://")
        await until_holds(lambda: not server.connections)
        assert await post(to) == b"{}"
        assert server.opened == 2
        to.close()
        await until_holds(lambda: not server.connections)


async def test_a_lost_connection_leaves_no_answer_and_the_next_request_opens_another() -> None:
    server = EchoServer()
    async with running(server) as (url, authority):
        to = Http1Server("test", url, ManualClock(0), authority)
        with pytest.raises(NoAnswerError, match="connection lost"):
            await post(to, "/cut")
        assert await post(to) == b"{}"
        assert server.opened == 2
        to.close()


@pytest.mark.parametrize(("most", "is_whole"), [(65_536, False), (1 << 20, True)])
async def test_answers_are_read_up_to_a_bound(most: int, is_whole: bool) -> None:
    server = EchoServer()
    async with running(server) as (url, authority):
        to = Http1Server("test", url, ManualClock(0), authority, most)
        assert (len(await post(to, "/long")) == 1_000_000) == is_whole
        to.close()


async def test_a_server_that_cannot_be_reached_is_counted() -> None:
    unreachable = CHANNEL_UNREACHABLE.labels("test")._value.get
    server = EchoServer()
    async with running(server) as (url, authority):
        stranger = Http1Server("test", url, ManualClock(0))
        with pytest.raises(UnavailableError, match=r"no connection to 127\.0\.0\.1: .*certificate"):
            await stranger.connect()
        assert unreachable() == 1
        stranger.close()
        assert unreachable() == 0
        to = Http1Server("test", url, ManualClock(0), authority)
        await post(to)
        to.close()
    to = Http1Server("test", url, ManualClock(0), authority)
    with pytest.raises(UnavailableError):
        await to.connect()
    assert unreachable() == 1
    to.close()
