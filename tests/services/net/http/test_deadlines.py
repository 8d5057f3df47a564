"""Deadlines of HTTP connections: silent clients, slow heads, endless bodies, and answers that nobody reads."""

import asyncio
import socket

import pytest

from services.net.http.connections import HttpLimits
from testkit.waiting import until_holds
from tests.services.net.http.serving import BOUND_S, GET, serving


async def test_silent_connections_end_at_the_deadline_of_the_head() -> None:
    async with serving() as served:
        clients = [await served.client() for _ in range(20)]
        await served.accepted(20)
        await served.move(7)
        assert len(served.connections) == 20
        await served.move(1)
        assert [await client.ended() for client in clients] == [b""] * 20
        await served.accepted(0)


@pytest.mark.parametrize("first", [b"", GET])
async def test_a_head_that_comes_slowly_is_answered_408(first: bytes) -> None:
    """Also on a connection that has already had a request: bytes do not extend the deadline."""
    async with serving() as served:
        client = await served.client()
        if first:
            client.send(first)
            assert await client.answer() == (200, b"done")
            await served.move(60)
        for byte in b"GET / HT":
            client.send(bytes([byte]))
            await asyncio.sleep(0.001)
            await served.move(1)
        status, body = await client.answer()
        assert (status, body) == (408, b'{"result":408,"desc":"no complete request head within 8 s"}')
        assert await client.ended() == b""
        assert served.requests == bool(first)


async def test_an_idle_connection_ends_and_a_used_one_stays() -> None:
    async with serving() as served:
        idle, used = await served.client(), await served.client()
        for client in (idle, used):
            client.send(GET)
            await client.answer()
        await served.move(74)
        used.send(GET)
        await used.answer()
        await served.move(1)
        assert await idle.ended() == b""
        used.send(GET)
        assert await used.answer() == (200, b"done")


async def test_a_request_in_progress_has_no_deadline_of_the_head() -> None:
    async with serving() as served:
        served.answering.clear()
        client = await served.client()
        client.send(GET)
        await until_holds(lambda: served.requests == 1)
        await served.move(1000)
        served.answering.set()
        assert await client.answer() == (200, b"done")


async def test_an_endless_body_after_the_answer_ends_the_connection() -> None:
    async with serving() as served:
        client = await served.client()
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await client.answer() == (200, b"done")
        for _ in range(7):
            client.send(b"5\r\nabcde\r\n")
            await served.move(1)
        assert len(served.connections) == 1
        await served.move(1)
        assert await client.ended() == b""


async def test_the_rest_of_a_body_that_was_answered_early_is_read_and_the_connection_stays() -> None:
    async with serving() as served:
        client = await served.client()
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
        assert await client.answer() == (200, b"done")
        client.send(b"cd")
        await asyncio.sleep(0.01)
        await served.move(70)
        client.send(GET)
        assert await client.answer() == (200, b"done")


@pytest.mark.parametrize("head", [GET, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"])
async def test_an_answer_that_nobody_reads_ends_the_connection(head: bytes) -> None:
    async with serving(answer=b"x" * 20_000_000) as served:
        client = await served.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(head)
        await until_holds(lambda: served.requests == 1)
        await served.move(1)
        await served.move(19)
        assert len(served.connections) == 1
        await served.move(1)
        await served.accepted(0)
        client.writer.close()


async def test_a_slow_reader_gets_the_whole_answer() -> None:
    async with serving(answer=b"x" * 3_000_000) as served:
        client = socket.create_connection(("127.0.0.1", served.listener.port))
        client.settimeout(BOUND_S)
        client.sendall(GET)
        await until_holds(lambda: served.requests == 1)
        received = 0
        while received < 3_000_000:
            received += len(await asyncio.to_thread(client.recv, 300_000))
            await served.move(15)
        client.close()


async def test_a_stopping_listener_ends_connections_in_the_middle_of_a_head() -> None:
    async with serving(HttpLimits()) as served:
        client = await served.client()
        client.send(b"GET / HT")
        await served.accepted(1)
    assert await client.ended() == b""
