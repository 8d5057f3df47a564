"""A request that offers to upgrade the connection, or waits for 100 Continue, is read like any other."""

import asyncio
from typing import Any

import pytest

from services.net.http.server import HttpListener

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
SIZED = b"Content-Length: 6\r\n\r\nabcdef"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n2\r\nef\r\n0\r\n\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = scope["path"].encode() + b" ", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("body", [SIZED, CHUNKED])
@pytest.mark.parametrize("cut", [1, 6, 25, 40])
async def test_the_body_is_read_however_it_arrives_and_the_connection_stays(body: bytes, cut: int) -> None:
    offered = b"POST /one HTTP/1.1\r\nHost: x\r\n" + OFFER + body
    plain = b"POST /two HTTP/1.1\r\nHost: x\r\n" + SIZED
    without_body = b"GET /three HTTP/1.1\r\nHost: x\r\n" + OFFER + b"\r\n"
    last = b"GET /four HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = await conversation([offered[: len(offered) - cut], offered[len(offered) - cut :]])
    assert answers == [b"/one abcdef"]
    whole = offered + plain + without_body + last
    assert await conversation([whole], 4) == [b"/one abcdef", b"/two abcdef", b"/three ", b"/four "]


async def test_a_broken_body_behind_an_offer_is_refused() -> None:
    request = b"POST / HTTP/1.1\r\nHost: x\r\n" + OFFER + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    with pytest.raises(AssertionError, match="400 Bad Request"):
        await conversation([request])


async def test_nothing_follows_the_refusal_of_a_request_that_waits_for_100_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    with pytest.raises(AssertionError, match="400 Bad Request"):
        await conversation([head + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"])
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def conversation(parts: list[bytes], count: int = 1) -> list[bytes]:
    """Send the parts over one connection, each by itself; return the bodies of the answers."""
    listener = HttpListener("test", echo, "127.0.0.1", 0)
    running = asyncio.create_task(listener.run(ready := asyncio.Event()))
    await asyncio.wait_for(ready.wait(), 60)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        return [await asyncio.wait_for(answer(reader), 60) for _ in range(count)]
    finally:
        writer.close()
        running.cancel()
        await asyncio.wait([running])


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head.decode()
    return await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
