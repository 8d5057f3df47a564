"""The protocol on real sockets: deadlines, refusals, errors of a listener, and that each end is told once."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from services.gateway.websocket.frames import Frame
from services.gateway.websocket.protocol import Listener, WebSocketProtocol, WebSocketSettings
from testkit.gateway.answering_listener import AnsweringListener
from testkit.gateway.websocket import BOUND_S, TEXT, UPGRADE, RawClient, frame

PATH, SUBPROTOCOL, MAX_BYTES = b"/device/v1", "one", 100


class Server:
    """WebSockets on a real socket; `ended` has an entry for each socket that has closed."""

    def __init__(self, new_listener: Callable[[], Listener], upgrade_s: float) -> None:
        self._endpoint = WebSocketSettings(PATH, SUBPROTOCOL, MAX_BYTES, upgrade_s)
        self._new_listener = new_listener
        self.ended: asyncio.Queue[None] = asyncio.Queue()
        self.port = 0

    async def open(self) -> asyncio.Server:
        server = await asyncio.get_running_loop().create_server(self._protocol, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def wait_ended(self) -> None:
        async with asyncio.timeout(BOUND_S):
            await self.ended.get()

    def _protocol(self) -> WebSocketProtocol:
        return WebSocketProtocol(self._endpoint, "127.0.0.1", self._new_listener, lambda: self.ended.put_nowait(None))


class FailingListener(AnsweringListener):
    def received(self, frame: Frame) -> None:
        raise RuntimeError("an error of the listener")


@pytest.fixture
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """A server with the listener and the deadline of the test's parameter."""
    server = Server(*getattr(request, "param", (lambda: AnsweringListener(b"answer"), BOUND_S)))
    async with await server.open():
        yield server


async def test_frames_behind_the_request_are_read_and_the_end_is_told_once(opened: Server) -> None:
    client = await RawClient.connect(opened.port, upgrade=False)
    client.send(UPGRADE + frame(TEXT, b"one") + frame(TEXT, b"two"))
    await client.upgraded()
    assert [(await client.next()).payload for _ in range(2)] == [b"answer"] * 2
    client.abort()
    await opened.wait_ended()
    assert opened.ended.empty()


@pytest.mark.parametrize("opened", [(lambda: AnsweringListener(b""), 0.01)], indirect=True)
@pytest.mark.parametrize("sent", [b"", UPGRADE[:-1]])
async def test_a_socket_without_a_whole_request_is_closed_at_the_deadline(opened: Server, sent: bytes) -> None:
    client = await RawClient.connect(opened.port, upgrade=False)
    client.send(sent)
    assert await client.rest() == b""
    await opened.wait_ended()


async def test_a_refused_request_is_answered_and_the_socket_closed(opened: Server) -> None:
    client = await RawClient.connect(opened.port, upgrade=False)
    client.send(UPGRADE.replace(PATH, b"/elsewhere"))
    assert (await client.rest()).startswith(b"HTTP/1.1 404 Not Found\r\n")
    await opened.wait_ended()


@pytest.mark.parametrize("opened", [(lambda: FailingListener(b""), BOUND_S)], indirect=True)
async def test_an_error_of_a_listener_ends_its_socket_and_is_logged(
    opened: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = await RawClient.connect(opened.port), await RawClient.connect(opened.port)
    client.send(frame(TEXT, b"x"))
    assert await client.rest() == b""
    await opened.wait_ended()
    assert opened.ended.empty(), "the other socket is open"
    assert "an error of the listener" in caplog.text
    other.abort()
    await opened.wait_ended()
