"""Bounds of what comes before a request is handled: bytes and number of headers, trailers, and pipelined requests."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from services.net.http.connections import HttpLimits
from testkit.waiting import until_holds
from tests.services.net.http.serving import BOUND_S, GET, Client, serving

START = b"GET / HTTP/1.1\r\nHost: x\r\n"
HEAD_BYTES = HttpLimits().head_bytes


def endless(start: bytes, again: bytes) -> Iterator[bytes]:
    """Yield 8 MB: the start, then the same piece again and again."""
    yield start
    piece = again * (10_000 // len(again))
    for _ in range(800):
        yield piece


async def sent_before_the_end(client: Client, pieces: Iterator[bytes]) -> int:
    """Send piece by piece until the service has ended the connection; return the number of bytes sent."""
    count = 0
    async with asyncio.timeout(BOUND_S):
        for piece in pieces:
            client.send(piece)
            count += len(piece)
            try:
                await client.writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0)
    return count


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (START + b"X-Long: ", b"x"),
        (START, b"X: y\r\n"),
        (START, b"x"),
        (b"GET /", b"x"),
        (b"", b"\r\n"),
        (b"", b"G"),
        (START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"x"),
        (START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
        (START + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
    ],
    ids=["value", "headers", "name", "path", "lines", "method", "trailer", "trailers", "extension"],
)
async def test_an_endless_head_ends_the_connection(start: bytes, again: bytes) -> None:
    async with serving() as served:
        served.answering.clear()
        client = await served.client()
        assert await sent_before_the_end(client, endless(start, again)) < 4_000_000
        await served.move(1)
        await served.move(3)
        await served.accepted(0)
        assert served.requests == (b"chunked" in start)


@pytest.mark.parametrize("cut", [1, 100, 20_000])
async def test_a_head_over_the_bound_is_answered_431(cut: int) -> None:
    head = START + b"X-Long: " + b"x" * HEAD_BYTES + b"\r\n\r\n"
    async with serving() as served:
        client = await served.client()
        for start in range(0, len(head), cut if cut > 1 else 4000):
            client.send(head[start : start + (cut if cut > 1 else 4000)])
            await asyncio.sleep(0)
        status, body = await client.answer()
        assert status == 431
        assert body == b'{"result":431,"desc":"the request line and the headers are larger than 16384 bytes"}'
        assert await client.ended() == b""
        assert served.requests == 0


async def test_a_head_over_the_bound_in_one_packet_is_refused_once() -> None:
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    async with serving() as served:
        client = await served.client()
        client.send(START + b"X-Long: " + b"x" * 2 * HEAD_BYTES + b"\r\n\r\n")
        assert (await client.answer())[0] == 431
        assert await client.ended() == b""
    assert lost == []


async def test_more_headers_than_the_bound_are_answered_431() -> None:
    async with serving() as served:
        client = await served.client()
        client.send(START + b"X: y\r\n" * 99 + b"\r\n")
        assert await client.answer() == (200, b"done")
        client.send(START + b"X: y\r\n" * 100 + b"\r\n")
        assert await client.answer() == (431, b'{"result":431,"desc":"a request has at most 100 headers"}')
        assert await client.ended() == b""


async def test_a_head_just_below_the_bound_is_handled_and_bodies_do_not_count() -> None:
    padding = b"x" * (HEAD_BYTES - len("/") - len("Host: x\r\n") - len("Content-Length: 100000\r\n") - len("X: \r\n"))
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\nX: " + padding + b"\r\n\r\n"
    async with serving() as served:
        client = await served.client()
        for _ in range(3):
            client.send(head + b"y" * 100_000)
            assert await client.answer() == (200, b"done")


async def test_an_answer_in_progress_is_not_mixed_with_a_refusal() -> None:
    async with serving() as served:
        served.answering.clear()
        client = await served.client()
        client.send(GET)
        await until_holds(lambda: served.requests == 1)
        client.send(START + b"X: " + b"x" * HEAD_BYTES)
        await served.move(60)
        served.answering.set()
        assert await client.answer() == (200, b"done")
        assert (await client.answer())[0] == 431
        assert await client.ended() == b""


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as served:
        client = await served.client()
        client.send(GET * 101)
        assert [await client.answer() for _ in range(101)] == [(200, b"done")] * 101


async def test_requests_before_too_many_pipelined_ones_are_answered() -> None:
    async with serving() as served:
        served.answering.clear()
        client = await served.client()
        client.send(GET * 102)
        await until_holds(lambda: served.requests == 1)
        served.answering.set()
        assert [await client.answer() for _ in range(101)] == [(200, b"done")] * 101
        assert (await client.answer())[0] == 431
        assert await client.ended() == b""
        assert served.requests == 101


async def test_nothing_is_read_while_a_pipelined_request_waits() -> None:
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000
    async with serving() as served:
        served.answering.clear()
        client = await served.client()
        client.send(GET)
        await until_holds(lambda: served.requests == 1)
        client.send(request * 30)
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert client.writer.transport.get_write_buffer_size() > 15_000_000
        served.answering.set()
        assert [await client.answer() for _ in range(31)] == [(200, b"done")] * 31


def test_the_request_in_progress_ends_with_its_connection_also_where_others_wait_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def conversation() -> None:
        async with serving() as served:
            served.answering.clear()
            client = await served.client()
            client.send(GET * 3)
            await until_holds(lambda: served.requests == 1)
            (connection,) = served.connections.open
            connection.abort()
            await served.accepted(0)
            served.answering.set()
            await served.move(0)

    uvloop.run(conversation())  # writing to a connection that has ended is an error on uvloop, as services run, alone
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
