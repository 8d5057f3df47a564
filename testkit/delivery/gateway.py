"""The gateway's side of an Attach stream, for tests of delivery."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse, Close, Connected, Reports, Send
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from services.delivery.channels.sockets.fanout import BACKLOG_WINDOW
from services.net.rpc.channel import Channel
from testkit.delivery.records import APP, RECEIVED, START_MS, NumberedDevice
from testkit.services import TIMEOUT_S
from testkit.waiting import run_ready_tasks


class ReceivedMessage(NamedTuple):
    """One message for one connection."""

    connection: int
    msgid: int
    content: str


class GatewayClient:
    """One Attach stream; `received`, `closes` and `responses` hold everything that came over it, in order.

    While `reads` is cleared the gateway takes no further response.
    """

    def __init__(self, channel: Channel) -> None:
        self.received: list[ReceivedMessage] = []
        self.closes: list[Close] = []
        self.responses: list[AttachResponse] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._channel = channel
        self._queue: asyncio.Queue[AttachRequest | None] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self.task = asyncio.create_task(self._follow())

    def request(self, **fields: Any) -> None:
        """Send one AttachRequest."""
        self._queue.put_nowait(AttachRequest(**fields))

    def connect(self, *connections: tuple[int, NumberedDevice], appkey: str = APP) -> None:
        """Announce connections (connection id, device)."""
        self.request(connected=[_connected(connection, device, appkey) for connection, device in connections])

    def report(self, kind: int, *rows: tuple[int, NumberedDevice], appkey: str = APP, time_ms: int = START_MS) -> None:
        """Report outcomes of one kind for rows of (message id, device)."""
        self.request(reports=[report_columns(kind, rows, appkey, time_ms)])

    def acknowledge(self, *rows: tuple[int, NumberedDevice]) -> None:
        """Acknowledge rows of (message id, device)."""
        self.report(RECEIVED, *rows)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is tested after each response."""
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(holds)

    async def wait_count(self, count: int) -> None:
        """Wait for at least `count` messages."""
        await self.wait_until(lambda: len(self.received) >= count)

    async def expect(self, *expected: tuple[int, int]) -> None:
        """Wait for as many messages, then assert that all so far are these: (connection id, message id)."""
        await self.wait_count(len(expected))
        assert [(message.connection, message.msgid) for message in self.received] == list(expected)

    async def expect_backlog(self, connection: int, device: NumberedDevice, msgids: Sequence[int]) -> None:
        """Acknowledge window by window, and assert that exactly these messages come over the connection, in order."""
        start = len(self.received)
        for end in range(start + BACKLOG_WINDOW, start + len(msgids) + BACKLOG_WINDOW, BACKLOG_WINDOW):
            expected = [(connection, msgid) for msgid in msgids[: end - start]]
            await self.wait_count(start + len(expected))
            await run_ready_tasks()
            assert [(message.connection, message.msgid) for message in self.received[start:]] == expected
            self.acknowledge(*((msgid, device) for _, msgid in expected[-BACKLOG_WINDOW:]))

    async def end(self) -> None:
        """End the stream from the gateway's side."""
        self._queue.put_nowait(None)
        await asyncio.wait_for(self.task, TIMEOUT_S)

    async def _follow(self) -> None:
        async for response in DeliveryServiceStub(self._channel).Attach(self._requests()):
            async with self._changed:
                self.responses.append(response)
                self.closes += response.closes
                for send in response.sends:
                    self.received += _messages(send)
                self._changed.notify_all()
            await self.reads.wait()

    async def _requests(self) -> AsyncIterator[AttachRequest]:
        yield AttachRequest(gateway="test")
        while (request := await self._queue.get()) is not None:
            yield request


def _connected(connection: int, device: NumberedDevice, appkey: str) -> Connected:
    return Connected(connection=connection, appkey=appkey, partition=device.partition, number=device.number)


def report_columns(
    kind: int, rows: Sequence[tuple[int, NumberedDevice]], appkey: str = APP, time_ms: int = START_MS
) -> Reports:
    """Return reports of one kind, one for each message id and device."""
    count = len(rows)
    return Reports(
        appkey=appkey,
        partitions=struct.pack(f"<{count}H", *(device.partition for _, device in rows)),
        numbers=struct.pack(f"<{count}I", *(device.number for _, device in rows)),
        msgids=struct.pack(f"<{count}Q", *(msgid for msgid, _ in rows)),
        kinds=bytes([kind]) * count,
        times_ms=struct.pack(f"<{count}q", *[time_ms] * count),
    )


def _messages(send: Send) -> list[ReceivedMessage]:
    connections = struct.unpack(f"<{len(send.connections) // 8}Q", send.connections)
    msgids = struct.unpack(f"<{len(send.msgids) // 8}Q", send.msgids)
    if len(msgids) == 1:
        msgids *= len(connections)
    return [ReceivedMessage(c, m, send.message.content) for c, m in zip(connections, msgids, strict=True)]
