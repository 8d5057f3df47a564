"""An answer's head and the first part of its body are one write; all else that uvicorn writes is written at once."""

import asyncio
import inspect
from typing import Any
from unittest.mock import Mock

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from services.net.http.protocol import AnswerTransport, HttpProtocol
from services.net.http.server import HttpListener

EXPECTING = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
HEAD_REQUEST = b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
BOUND_S = 30.0


async def in_two_parts(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"ab", "more_body": True})
    await send({"type": "http.response.body", "body": b"cd"})


async def test_the_head_is_written_with_the_first_part_of_the_body(monkeypatch: Any) -> None:
    written: list[bytes] = []
    made = HttpProtocol.connection_made

    def connection_made(self: HttpProtocol, transport: Any) -> None:
        def write(data: bytes) -> None:
            written.append(data)
            transport.write(data)

        made(self, Mock(wraps=transport, write=write))

    monkeypatch.setattr(HttpProtocol, "connection_made", connection_made)
    listener = HttpListener("test", in_two_parts, "127.0.0.1", 0)
    running = asyncio.create_task(listener.run(ready := asyncio.Event()))
    try:
        async with asyncio.timeout(BOUND_S):
            await ready.wait()
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(EXPECTING)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"xy")
            await reader.readuntil(b"abcd")
            writer.write(HEAD_REQUEST)
            assert (await reader.read()).endswith(b"\r\n\r\n")
            writer.close()
    finally:
        running.cancel()
        await asyncio.wait([running])
    before, first, last, head_alone = written
    assert before.startswith(b"HTTP/1.1 100")
    assert (first.startswith(b"HTTP/1.1 200 OK\r\n"), first.endswith(b"\r\n\r\nab"), last) == (True, True, b"cd")
    assert head_alone.startswith(b"HTTP/1.1 200 OK\r\n")


def test_an_answer_that_never_gets_a_body_writes_nothing() -> None:
    transport = Mock()
    AnswerTransport(transport, transport.close).write(b"HTTP/1.1 200 OK\r\n\r\n")
    transport.write.assert_not_called()


async def test_uvicorn_has_every_internal_that_the_protocol_relies_on() -> None:
    """A new version of uvicorn that moves one of them fails here, and not by a bound that no longer holds."""
    shared = vars(HttpProtocol).keys() & vars(HttpToolsProtocol).keys()
    replaced = {name for name in shared if not name.startswith("__")}
    assert replaced == {
        *("connection_made", "connection_lost", "eof_received", "data_received", "send_400_response"),
        *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"),
        *("_start_asgi_task", "on_response_complete"),
    }
    for name in replaced:
        ours, theirs = (inspect.signature(getattr(each, name)).parameters for each in (HttpProtocol, HttpToolsProtocol))
        assert list(ours) == list(theirs), name
    protocol = HttpToolsProtocol(uvicorn.Config(in_two_parts), ServerState(), {})
    for name in ("pipeline", "flow", "cycle", "headers", "parser", "transport", "server_state"):
        assert hasattr(protocol, name), name
    for name in (
        "disconnected",
        "keep_alive",
        "more_body",
        "response_complete",
        "response_started",
        "chunked_encoding",
    ):
        assert f"self.{name}" in inspect.getsource(RequestResponseCycle), name
