"""A request that has arrived whole is answered, whatever comes behind it on its connection."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from services.net.http.connections import HttpLimits
from testkit.waiting import until_holds
from tests.services.net.http.serving import BOUND_S, GET, Client, Serving, serving

POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSING = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
OLD = b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"
STRAY = (b"\0", b"}", b"\r\n--x--\r\n", b"\xf0\x9f\x98\x80", b"}" * 200_000, b"}" * 600_000)


@asynccontextmanager
async def waiting(first: bytes, requests: int = 1) -> AsyncIterator[tuple[Serving, Client]]:
    """Serve a client that has sent the bytes, whose first request is carried out and not answered yet."""
    async with serving() as served:
        served.answering.clear()
        client = await served.client()
        client.send(first)
        await until_holds(lambda: served.requests == 1)
        yield served, client
        assert served.requests == requests


@pytest.mark.parametrize("stray", STRAY, ids=lambda stray: repr(stray[:12]) + str(len(stray)))
@pytest.mark.parametrize("request_bytes", [GET, POST, CLOSING, OLD], ids=["get", "post", "close", "1.0"])
@pytest.mark.parametrize("is_late", [False, True], ids=["together", "later"])
def test_bytes_that_are_no_request_take_no_answer_away(request_bytes: bytes, stray: bytes, is_late: bool) -> None:
    async def conversation() -> None:
        async with waiting(request_bytes + (b"" if is_late else stray)) as (served, client):
            if is_late:
                client.send(stray)
            for _ in range(5):
                await served.move(2)  # the connection is not one that closes
            served.answering.set()
            assert await client.answer() == (200, b"done")
            assert await client.ended() == b""  # no second answer, which a client would take for its next request's

    uvloop.run(conversation())  # as services run


async def test_the_answer_before_stray_bytes_says_that_the_connection_closes() -> None:
    async with waiting(GET * 3 + b"}", requests=3) as (served, client):
        served.answering.set()
        answers = (await client.ended()).lower()
        assert (answers.count(b"200 ok"), answers.count(b"connection: close")) == (3, 1)
        assert answers.rfind(b"200 ok") < answers.find(b"connection: close")


@pytest.mark.parametrize(
    ("behind", "status"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (CHUNKED + b"no chunk\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
    ],
    ids=["version", "chunks", "length"],
)
async def test_a_refused_request_is_answered_behind_those_before_it(behind: bytes, status: int) -> None:
    async with waiting(GET * 2 + behind, requests=2) as (served, client):
        served.answering.set()
        assert [await client.answer() for _ in range(2)] == [(200, b"done")] * 2
        assert (await client.answer())[0] == status
        assert await client.ended() == b""


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (GET, 1),
        (POST, 1),
        (CLOSING, 1),
        (OLD, 1),
        (POST * 3, 3),
        (CHUNKED + b"2\r\n{}\r\n0\r\n\r\n", 1),
        (POST + b"}", 1),
    ],
    ids=["get", "post", "close", "1.0", "pipelined", "chunked", "stray"],
)
def test_a_client_that_ends_its_sending_direction_gets_its_answers(sent: bytes, answers: int) -> None:
    async def conversation() -> None:
        async with waiting(sent, requests=answers) as (served, client):
            client.writer.write_eof()
            await served.move(29)
            served.answering.set()
            assert [await client.answer() for _ in range(answers)] == [(200, b"done")] * answers
            assert await client.ended() == b""
            await served.accepted(0)

    uvloop.run(conversation())


@pytest.mark.parametrize(
    "sent", [CHUNKED + b"2\r\n{}\r\n", POST[:-1], GET[:-2], b"GE"], ids=["chunks", "body", "head", "line"]
)
@pytest.mark.parametrize("before", [0, 2])
async def test_a_request_that_ends_in_its_middle_is_refused(sent: bytes, before: int) -> None:
    bodies: list[bytes] = []

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    async with serving(application=reading) as served:
        client = await served.client()
        client.send(GET * before + sent)
        client.writer.write_eof()
        assert [await client.answer() for _ in range(before)] == [(200, b"done")] * before
        assert await client.answer() == (400, b'{"result":400,"desc":"the connection ended inside the request"}')
        assert await client.ended() == b""
        await served.accepted(0)
    assert bodies == [b""] * before


async def test_an_answer_is_due_for_a_bounded_time_after_the_client_has_ended() -> None:
    async with waiting(GET) as (served, client):
        client.writer.write_eof()
        await asyncio.sleep(0.01)
        await served.move(29)
        assert len(served.connections) == 1
        await served.move(1)
        assert await client.ended() == b""
        await served.accepted(0)


async def test_a_client_that_is_gone_ends_the_request_with_the_first_write() -> None:
    async with serving(HttpLimits(), answer=b"x" * 1_000_000) as served:
        served.answering.clear()
        gone = socket.create_connection(("127.0.0.1", served.listener.port))
        gone.sendall(GET)
        await until_holds(lambda: served.requests == 1)
        gone.close()
        await asyncio.sleep(0.01)
        served.answering.set()
        await served.accepted(0)


async def test_a_stream_ends_with_its_client() -> None:
    """A browser that closes a page ends its sending direction, and the page's stream of news ends."""
    ended = asyncio.Event()

    async def news(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"news", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    async with serving(application=news) as served:
        client = await served.client()
        client.send(GET)
        await served.accepted(1)
        async with asyncio.timeout(BOUND_S):
            await client.part(b"news")
            client.writer.close()
            await ended.wait()
        await served.accepted(0)
