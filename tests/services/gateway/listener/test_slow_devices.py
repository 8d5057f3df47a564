"""Devices that do not read what the gateway sends them: how much of it waits in the gateway's memory."""

import asyncio
from functools import partial
from typing import cast

import pytest

from services.domain.device_protocol.answers import Error, Ok
from services.gateway.connection import MAX_QUEUED_REQUESTS, DeviceConnection, Handler
from services.gateway.connections import ConnectionIds, OpenConnections
from services.gateway.settings import GatewaySettings
from services.gateway.websocket.frames import PING, Frame
from services.net.http.client_address import ClientAddresses, Networks
from testkit.gateway.role import ANDROID, NOON_MS, PARTITIONS, RunningGateway
from testkit.gateway.websocket import DeviceClient
from testkit.waiting import run_ready_tasks

LIMITS = GatewaySettings(partitions=PARTITIONS, gateway_frames_per_10s=100_000).limits()
ANSWER = Error(code=400, desc="x" * 200_000, id=1)


class UnreadTransport:
    """A transport whose peer reads nothing until the test calls `read`."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.connection: DeviceConnection
        self._high = 0

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def write(self, sent: bytes) -> None:
        self.unsent_bytes += len(sent)
        if self.unsent_bytes > self._high:
            self.connection.pause_writing()

    def read(self) -> None:
        self.unsent_bytes = 0
        self.connection.resume_writing()


class UnreadSocket:
    """A WebSocket over such a transport."""

    def __init__(self) -> None:
        self.transport = cast(asyncio.Transport, UnreadTransport())
        self.sent: list[bytes] = []
        self.is_aborted = False

    def send_text(self, payload: bytes) -> None:
        self.sent.append(payload)
        self.transport.write(payload)

    send_ping = send_pong = send_text

    def send_close(self, code: int | None, reason: bytes = b"") -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


class ClosingReasons(Handler[DeviceConnection]):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def closing(self, connection: DeviceConnection, reason: str) -> None:
        self.reasons.append(reason)


class UnreadConnection:
    """A device's connection that the device does not read."""

    def __init__(self) -> None:
        self.handler, self.socket = ClosingReasons(), UnreadSocket()
        self.open_connections: OpenConnections[DeviceConnection] = OpenConnections(ConnectionIds(1), lambda: NOON_MS)
        self.connection = DeviceConnection(
            self.handler, self.open_connections, LIMITS, lambda: NOON_MS, ClientAddresses(Networks([]))
        )
        self.transport = cast(UnreadTransport, self.socket.transport)
        self.transport.connection = self.connection
        self.connection.opened(self.socket, "192.0.2.1", [])

    def submit(self, requests: int) -> None:
        """Have so many requests answered, by an answer of 200 KB each."""

        async def answer() -> None:
            self.connection.send(ANSWER)

        for _ in range(requests):
            self.connection.submit(answer)


async def test_requests_wait_until_the_device_has_read_the_earlier_answers() -> None:
    unread = UnreadConnection()
    unread.submit(MAX_QUEUED_REQUESTS)
    for answered in range(1, MAX_QUEUED_REQUESTS + 1):
        await run_ready_tasks()
        assert len(unread.socket.sent) == answered
        unread.transport.read()
    assert unread.handler.reasons == []


async def test_requests_that_wait_do_not_outlive_the_connection() -> None:
    unread = UnreadConnection()
    unread.submit(3)
    await run_ready_tasks()
    unread.connection.abort("slow")
    unread.connection.closed()
    await run_ready_tasks()
    async with asyncio.timeout(0):
        await unread.open_connections.wait_closed()
    assert len(unread.socket.sent) == 1


@pytest.mark.parametrize("kind", ["confirmations", "pongs"])
async def test_small_frames_count_as_unsent_bytes_too(kind: str) -> None:
    unread = UnreadConnection()
    connection = unread.connection
    send = {
        "confirmations": partial(connection.send, Ok(id=1)),
        "pongs": partial(connection.received, Frame(PING, b"x" * 125)),
    }[kind]
    while not unread.socket.is_aborted and unread.transport.unsent_bytes < 2 * LIMITS.buffer_bytes:
        send()
    assert unread.socket.is_aborted
    assert unread.transport.unsent_bytes < LIMITS.buffer_bytes + 200
    assert unread.handler.reasons == ["slow"]


async def test_a_device_that_reads_late_gets_every_answer(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    for first in range(0, 1000, 100):
        stags = [f"{number:040}" for number in range(first, first + 100)]
        assert (await client.request(type="add_stags", id=first, stags=stags))["type"] == "ok"
    client.transport.underlying_transport.pause_reading()
    for number in range(MAX_QUEUED_REQUESTS):
        client.send(type="get_device", id=number)
    client.send(type="activity", event="login")
    await gateway.session_facts(enough=2)
    client.transport.underlying_transport.resume_reading()
    answers = [await client.next() for _ in range(MAX_QUEUED_REQUESTS)]
    assert [(answer["id"], len(answer["stags"])) for answer in answers] == [
        (number, 1000) for number in range(MAX_QUEUED_REQUESTS)
    ]
