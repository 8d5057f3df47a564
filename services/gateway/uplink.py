"""The streams to delivery: they carry connections and devices' reports to it, and pushes back.

Each shard of delivery has one stream, to its owner. A stream that breaks is opened again, to the next owner as soon as
the log names it; the gateway then repeats the reports that the log may not have, and announces all connections anew.
"""

import asyncio
import contextlib
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from random import Random
from sys import byteorder
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse, OutcomeKind, Reports
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from services.errors import CarillonError, PermissionDeniedError
from services.gateway.connections import DeviceSession
from services.gateway.session_writer import Confirm
from services.net.rpc.channel import Channel
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.metrics import REPORTS
from services.replica.instances import OwnerOfShard

MAX_REPORTS = 2_000_000
"""Upper bound of the reports that are kept while delivery is away."""

MAX_UNPROVED_REPORTS = MAX_REPORTS // 4
"""Number of kept reports beyond which a report that the device may have invented is dropped, to keep capacity."""

_BATCH_REPORTS = 10_000
_BATCH_CONNECTED = 5_000
_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 2.0
_STOP_S = 3.0

ResponseHandler = Callable[[AttachResponse], Awaitable[None]]


class Uplink:
    """Service: the stream to the owner of one shard of delivery.

    `begin` is called when a stream begins; it returns the sessions of the shard.
    """

    def __init__(
        self,
        channel: Channel,
        owner: OwnerOfShard,
        gateway: str,
        queue: "UnreportedQueue",
        begin: Callable[[], list[DeviceSession]],
        handle: ResponseHandler,
        random: Random,
    ) -> None:
        self.name = f"gateway-uplink-{owner.shard}"
        self._stub = DeliveryServiceStub(channel)
        self._owner = owner
        self._gateway = gateway
        self._queue = queue
        self._begin = begin
        self._handle = handle
        self._random = random
        self._attempt = 0
        self._stopping = False

    async def run(self, ready: asyncio.Event) -> None:
        streaming = asyncio.create_task(self._stream())
        ready.set()
        try:
            await asyncio.wait([streaming])
            streaming.result()
        finally:
            self._stopping = True
            self._queue.changed.set()
            await asyncio.wait([streaming], timeout=_STOP_S)
            if self._queue.unrecorded:
                logger.error(
                    "reports may be lost at the stop: delivery has not confirmed them",
                    count=self._queue.unrecorded,
                    shard=self._owner.shard,
                )
            streaming.cancel()
            await asyncio.wait([streaming])

    async def _stream(self) -> None:
        failures = 0
        while not self._stopping:
            self._attempt += 1
            owner = self._owner.id
            try:
                async for response in self._stub.Attach(self._requests(self._attempt)):
                    failures = 0
                    self._queue.recorded(response.recorded)
                    await self._handle(response)
            except PermissionDeniedError:
                raise  # no attempt can succeed: it is another shard's instance, or refuses the gateway's certificate
            except CarillonError as error:
                logger.warning("the stream to delivery broke", error=str(error), shard=self._owner.shard)
            if not self._stopping:
                await self._back_off(failures, owner)
                failures = min(failures + 1, 10)

    async def _back_off(self, failures: int, owner: str | None) -> None:
        """Wait before the next attempt; return early once the shard has another owner than this one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_BACKOFF_S * 2**failures, _MAX_BACKOFF_S) * self._random.uniform(0.5, 1)):
                await self._owner.wait_other(owner, urgently=True)

    async def _requests(self, attempt: int) -> AsyncIterator[AttachRequest]:
        """Yield the requests of one stream until a later attempt begins, or at the stop until all are in the log."""
        self._queue.restart(self._begin())
        yield AttachRequest(gateway=self._gateway)
        while attempt == self._attempt:
            batch = self._queue.take()
            if batch is not None:
                reached(Point.REPORTS_TAKEN)
                yield batch
                reached(Point.REPORTS_HANDED)
            elif self._stopping and not self._queue.unrecorded:
                return
            else:
                self._queue.changed.clear()
                await self._queue.changed.wait()


class ReportColumns:
    """Reports of one app in columns; row i of each column belongs to report i."""

    def __init__(self, appkey: str) -> None:
        self.appkey = appkey
        self.partitions = array("H")
        self.numbers = array("I")
        self.msgids = array("Q")
        self.kinds = array("B")
        self.times_ms = array("q")
        self.confirms: list[Confirm] = []

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, session: DeviceSession, msgid: int, kind: int, time_ms: int) -> None:
        self.partitions.append(session.partition)
        self.numbers.append(session.number)
        self.msgids.append(msgid)
        self.kinds.append(kind)
        self.times_ms.append(time_ms)

    def to_proto(self) -> Reports:
        return Reports(
            appkey=self.appkey,
            partitions=_little_endian(self.partitions),
            numbers=_little_endian(self.numbers),
            msgids=_little_endian(self.msgids),
            kinds=self.kinds.tobytes(),
            times_ms=_little_endian(self.times_ms),
        )


class ReportBatch(NamedTuple):
    """Reports that were sent under one sequence number; `rows` is their count."""

    sequence: int
    rows: int
    reports: list[Reports]
    confirms: list[Confirm]


class UnreportedQueue:
    """Reports and connection changes to send to one delivery instance, and sent reports not yet in the log; bounded.

    Reports go before disconnects and connects, so that delivery does not resend a push that was acknowledged.
    `unrecorded` counts the reports that the log may not have. `changed` is set when something is to be sent, and when
    the log has all reports.
    """

    def __init__(self) -> None:
        self._connected: dict[int, DeviceSession] = {}
        self._open_before: set[int] = set()
        self._disconnected: list[int] = []
        self._filling: dict[str, ReportColumns] = {}
        self._full: deque[ReportColumns] = deque()
        self._sent: deque[ReportBatch] = deque()
        self._resend: deque[ReportBatch] = deque()
        self._sequence = self._dropped = 0
        self.unrecorded = 0
        self.changed = asyncio.Event()

    def connected(self, session: DeviceSession) -> None:
        self._connected[session.connection] = session
        self.changed.set()

    def disconnected(self, session: DeviceSession) -> None:
        self._open_before.discard(session.connection)
        if self._connected.pop(session.connection, None) is None:
            self._disconnected.append(session.connection)
            self.changed.set()

    def report(
        self,
        session: DeviceSession,
        msgids: list[int],
        kind: "OutcomeKind.ValueType",
        time_ms: int,
        is_proved: bool = True,
        confirm: Confirm | None = None,
    ) -> None:
        """Queue reports of one kind; `is_proved`: this gateway has sent the device all of these messages.

        `confirm` is called once the log has the reports, and never if they are dropped.
        """
        if self.unrecorded + len(msgids) > (MAX_REPORTS if is_proved else MAX_UNPROVED_REPORTS):
            if not self._dropped:
                logger.error("reports are dropped from now on: delivery has been away for too long")
            self._dropped += len(msgids)
            return
        columns = self._filling.get(session.appkey)
        if columns is None:
            columns = self._filling[session.appkey] = ReportColumns(session.appkey)
        for msgid in msgids:
            columns.add(session, msgid, kind, time_ms)
        if confirm is not None:
            columns.confirms.append(confirm)
        self.unrecorded += len(msgids)
        if len(columns) >= _BATCH_REPORTS:
            self._full.append(self._filling.pop(session.appkey))
        self.changed.set()

    def recorded(self, sequence: int) -> None:
        """Forget the reports of all batches up to this one: the log has them."""
        while self._sent and self._sent[0].sequence <= sequence:
            batch = self._sent.popleft()
            self.unrecorded -= batch.rows
            for confirm in batch.confirms:
                confirm()
            if self._dropped:
                logger.error("reports were dropped while delivery was away", count=self._dropped)
                self._dropped = 0
        if not self.unrecorded:
            self.changed.set()

    def restart(self, current: list[DeviceSession]) -> None:
        """Begin a new stream: send the unrecorded batches again, then announce these sessions."""
        self._connected = {session.connection: session for session in current}
        self._open_before = set(self._connected)
        self._disconnected.clear()
        self._resend = deque(self._sent)
        self.changed.set()

    def take(self) -> AttachRequest | None:
        """Return the next request, or None when nothing waits. Reports keep their order."""
        request = AttachRequest()
        if (batch := self._next_batch()) is not None:
            request.sequence = batch.sequence
            request.reports.extend(batch.reports)
        if not (self._resend or self._full or self._filling):
            self._add_connection_changes(request)
        return request if request.sequence or request.connected or request.disconnected else None

    def _add_connection_changes(self, request: AttachRequest) -> None:
        request.disconnected.extend(self._disconnected)
        self._disconnected = []
        for connection in list(islice(self._connected, _BATCH_CONNECTED)):
            s = self._connected.pop(connection)
            request.connected.add(
                connection=connection,
                appkey=s.appkey,
                partition=s.partition,
                number=s.number,
                open_before=connection in self._open_before,
            )
            self._open_before.discard(connection)

    def _next_batch(self) -> ReportBatch | None:
        if self._resend:
            return self._resend.popleft()
        if self._full:
            columns = [self._full.popleft()]
        else:
            columns, self._filling = list(self._filling.values()), {}
        if not columns:
            return None
        count = sum(map(len, columns))
        REPORTS.inc(count)
        self._sequence += 1
        confirms = [confirm for column in columns for confirm in column.confirms]
        batch = ReportBatch(self._sequence, count, [column.to_proto() for column in columns], confirms)
        self._sent.append(batch)
        return batch


def _little_endian(column: "array[int]") -> bytes:
    if byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
