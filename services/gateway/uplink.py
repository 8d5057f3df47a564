"""The streams to delivery: one to each instance, batches both ways.

Up go connections and what devices report. A stream that breaks is made again; then all connections are announced anew
and the reports of the last seconds are repeated, because nobody knows whether they had arrived.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from sys import byteorder

import msgspec

from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse, Connected, OutcomeKind, Reports
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from services.gateway.state import Session
from services.runtime.clock import Clock
from services.runtime.errors import CarillonError
from services.runtime.logs import logger
from services.runtime.metrics import REPORTS
from services.runtime.rpc import Channel

MAX_REPORTS = 2_000_000
"""Reports that wait while delivery is away, at most."""

_BATCH_REPORTS = 10_000
_BATCH_CONNECTED = 5_000
_REPEAT_MS = 10_000
_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 2.0
_STOP_S = 3.0

Handler = Callable[[AttachResponse], Awaitable[None]]
Announced = Callable[[], list[Session]]


class Columns:
    """Reports of one app, as they are made."""

    def __init__(self, appkey: str) -> None:
        self.appkey = appkey
        self.partitions = array("H")
        self.numbers = array("I")
        self.msgids = array("Q")
        self.kinds = array("B")
        self.times_ms = array("q")

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, session: Session, msgid: int, kind: int, time_ms: int) -> None:
        self.partitions.append(session.partition)
        self.numbers.append(session.number)
        self.msgids.append(msgid)
        self.kinds.append(kind)
        self.times_ms.append(time_ms)

    def to_proto(self) -> Reports:
        return Reports(
            appkey=self.appkey,
            partitions=_little(self.partitions),
            numbers=_little(self.numbers),
            msgids=_little(self.msgids),
            kinds=self.kinds.tobytes(),
            times_ms=_little(self.times_ms),
        )


class Handed(msgspec.Struct, frozen=True):
    """Reports that were given to a stream, and when."""

    time_ms: int
    count: int
    reports: list[Reports]


class Outbox:
    """What waits to go up one stream, bounded; and what went up a moment ago."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connected: dict[int, Session] = {}
        self._disconnected: list[int] = []
        self._columns: dict[str, Columns] = {}
        self._full: deque[Columns] = deque()
        self._repeated: deque[Handed] = deque()
        self._handed: deque[Handed] = deque()
        self.waiting = 0
        self.news = asyncio.Event()

    def connected(self, session: Session) -> None:
        self._connected[session.connection] = session
        self.news.set()

    def disconnected(self, session: Session) -> None:
        if self._connected.pop(session.connection, None) is None:
            self._disconnected.append(session.connection)
            self.news.set()

    def report(self, session: Session, msgids: list[int], kind: "OutcomeKind.ValueType", time_ms: int) -> None:
        if self.waiting + len(msgids) > MAX_REPORTS:
            logger.error("reports were dropped: delivery has been away for too long", count=len(msgids))
            return
        columns = self._columns.get(session.appkey)
        if columns is None:
            columns = self._columns[session.appkey] = Columns(session.appkey)
        for msgid in msgids:
            columns.add(session, msgid, kind, time_ms)
        self.waiting += len(msgids)
        if len(columns) >= _BATCH_REPORTS:
            self._full.append(self._columns.pop(session.appkey))
        self.news.set()

    def start_again(self, current: list[Session]) -> None:
        """A new stream: announce everything, repeat what the last one may have lost."""
        self._connected = {session.connection: session for session in current}
        self._disconnected.clear()
        self._repeated += self._handed
        self._handed.clear()
        self.news.set()

    def take(self) -> AttachRequest | None:
        """The next batch, or None when nothing waits. Reports stand in the order they came."""
        connected = [self._connected.pop(key) for key in list(self._connected)[:_BATCH_CONNECTED]]
        disconnected, self._disconnected = self._disconnected, []
        reports = self._take_reports()
        if not (connected or disconnected or reports):
            return None
        return AttachRequest(
            connected=[
                Connected(connection=s.connection, appkey=s.appkey, partition=s.partition, number=s.number)
                for s in connected
            ],
            disconnected=disconnected,
            reports=reports,
        )

    def _take_reports(self) -> list[Reports]:
        now_ms = self._clock.now_ms()
        if self._repeated:
            again = self._repeated.popleft()
            self._handed.append(msgspec.structs.replace(again, time_ms=now_ms))
            return again.reports
        if self._full:
            columns = [self._full.popleft()]
        else:
            columns = list(self._columns.values())
            self._columns = {}
        count = sum(map(len, columns))
        self.waiting -= count
        REPORTS.inc(count)
        reports = [column.to_proto() for column in columns]
        if reports:
            self._handed.append(Handed(now_ms, count, reports))
        while self._handed and self._handed[0].time_ms + _REPEAT_MS < now_ms:
            self._handed.popleft()
        return reports


class Uplink:
    """A service: the stream to one delivery instance. `current` gives the sessions that belong to it."""

    def __init__(
        self, channel: Channel, gateway: str, outbox: Outbox, current: Announced, handle: Handler, random: Random
    ) -> None:
        self.name = "gateway-uplink"
        self._stub = DeliveryServiceStub(channel)
        self._gateway = gateway
        self._outbox = outbox
        self._current = current
        self._handle = handle
        self._random = random
        self._attempt = 0
        self._stopping = False

    async def run(self, ready: asyncio.Event) -> None:
        following = asyncio.create_task(self._follow())
        ready.set()
        try:
            await asyncio.wait([following])
            following.result()
        finally:
            self._stopping = True
            self._outbox.news.set()
            await asyncio.wait([following], timeout=_STOP_S)
            if self._outbox.waiting:
                logger.error("reports were lost at the stop: delivery is away", count=self._outbox.waiting)
            following.cancel()
            await asyncio.wait([following])

    async def _follow(self) -> None:
        failures = 0
        while not self._stopping:
            self._attempt += 1
            try:
                async for response in self._stub.Attach(self._requests(self._attempt)):
                    failures = 0
                    await self._handle(response)
            except CarillonError as error:
                logger.warning("the stream to delivery broke", error=str(error))
            if not self._stopping:
                await asyncio.sleep(min(_BACKOFF_S * 2**failures, _MAX_BACKOFF_S) * self._random.uniform(0.5, 1))
                failures = min(failures + 1, 10)

    async def _requests(self, attempt: int) -> AsyncIterator[AttachRequest]:
        """What goes up; ends when a later attempt has begun, or at the stop once all is handed over."""
        self._outbox.start_again(self._current())
        yield AttachRequest(gateway=self._gateway)
        while attempt == self._attempt:
            batch = self._outbox.take()
            if batch is not None:
                yield batch
            elif self._stopping:
                return
            else:
                self._outbox.news.clear()
                await self._outbox.news.wait()


def _little(column: "array[int]") -> bytes:
    if byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
