"""A delivery service for tests of the gateway: it stores what gateways report, and sends what the test orders."""

import asyncio
import struct
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy

from protos.delivery.v1.delivery_pb2 import (
    AttachRequest,
    AttachResponse,
    CheckAliasesRequest,
    CheckAliasesResponse,
    Close,
    DroppedMessages,
    GetBroadcastRequest,
    GetBroadcastResponse,
    RecordReportsRequest,
    RecordReportsResponse,
    Send,
)
from protos.delivery.v1.delivery_pb2_grpc import AliasesServiceServicer, DeliveryServiceServicer, ReportsServiceServicer
from protos.push.v1.push_pb2 import Message
from services.errors import NotFoundError
from services.net.rpc.server import Context

BOUND_S = 60.0


class ScriptedDelivery(DeliveryServiceServicer):
    """Stores the requests of every stream and answers on the newest one.

    With `confirms` it reports each batch as recorded in the log at once. `cancelled` holds the ids of broadcasts; it
    knows no others.
    """

    def __init__(self) -> None:
        self.requests: list[AttachRequest] = []
        self.attached = 0
        self.confirms = True
        self.cancelled: set[int] = set()
        self.changed = asyncio.Event()
        self._outgoing: asyncio.Queue[AttachResponse | None] = asyncio.Queue()

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        if request.msgid not in self.cancelled:
            raise NotFoundError("no such broadcast")
        return GetBroadcastResponse(cancelled=True)

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        outgoing = self._outgoing = asyncio.Queue()
        self.attached += 1
        self.changed.set()
        receiving = asyncio.create_task(self._receive(requests, outgoing))
        try:
            while (response := await outgoing.get()) is not None:
                yield response
        finally:
            receiving.cancel()

    async def _receive(
        self, requests: AsyncIterator[AttachRequest], outgoing: "asyncio.Queue[AttachResponse | None]"
    ) -> None:
        async for request in requests:
            self.requests.append(request)
            self.changed.set()
            if request.sequence and self.confirms:
                outgoing.put_nowait(AttachResponse(recorded=request.sequence))
        outgoing.put_nowait(None)

    def send(self, message: Message, connections: list[int], msgids: list[int], expires_ms: int = 5) -> None:
        send = Send(
            message=message,
            expires_ms=expires_ms,
            connections=array("Q", connections).tobytes(),
            msgids=array("Q", msgids).tobytes(),
        )
        self._outgoing.put_nowait(AttachResponse(sends=[send]))

    def close(self, connection: int, reason: str) -> None:
        self._outgoing.put_nowait(AttachResponse(closes=[Close(connection=connection, reason=reason)]))

    def break_stream(self) -> None:
        self._outgoing.put_nowait(None)

    def connections(self) -> list[int]:
        """Return every announced connection in order, as often as it was announced."""
        return [connected.connection for request in self.requests for connected in request.connected]

    def disconnected(self) -> list[int]:
        return [connection for request in self.requests for connection in request.disconnected]

    def reports(self) -> list[tuple[int, int, int]]:
        """Return (device number, msgid, kind) of every report, in order."""
        return [
            row
            for request in self.requests
            for reports in request.reports
            for row in zip(
                numpy.frombuffer(reports.numbers, "<u4").tolist(),
                numpy.frombuffer(reports.msgids, "<u8").tolist(),
                list(reports.kinds),
                strict=True,
            )
        ]

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until the condition holds; return its value."""
        async with asyncio.timeout(BOUND_S):
            while not (result := condition()):
                self.changed.clear()
                await self.changed.wait()
        return result


class ScriptedAliases(AliasesServiceServicer):
    """Notes the devices that front ends have checked, as (appkey, partition, number).

    `dropped`: the messages that each check says it has dropped. While `answers` is cleared no check is answered; with
    `error` each fails.
    """

    def __init__(self) -> None:
        self.checked: list[tuple[str, int, int]] = []
        self.dropped: list[int] = []
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = asyncio.Event()

    async def CheckAliases(self, request: CheckAliasesRequest, context: Context) -> CheckAliasesResponse:
        self.asked.set()
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        self.checked += [(each.appkey, each.partition, each.number) for each in request.devices]
        return CheckAliasesResponse(dropped=[DroppedMessages(msgids=self.dropped) for _ in request.devices])


class ScriptedReports(ReportsServiceServicer):
    """Notes what devices report to front ends, as (appkey, partition, number, msgid, kind); with `error` calls fail."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int, int, int]] = []
        self.calls = 0
        self.error: Exception | None = None

    async def RecordReports(self, request: RecordReportsRequest, context: Context) -> RecordReportsResponse:
        if self.error is not None:
            raise self.error
        self.calls += 1
        for reports in request.reports:
            count = len(reports.kinds)
            partitions = struct.unpack(f"<{count}H", reports.partitions)
            numbers = struct.unpack(f"<{count}I", reports.numbers)
            msgids = struct.unpack(f"<{count}Q", reports.msgids)
            rows = zip([reports.appkey] * count, partitions, numbers, msgids, reports.kinds, strict=True)
            self.rows += rows
        return RecordReportsResponse()
