"""What a gateway has to tell one delivery instance: who came, who left, and what devices said of messages."""

import asyncio
from array import array
from collections import deque
from sys import byteorder
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import AttachRequest, OutcomeKind, Reports
from services.gateway.connections import Session
from services.runtime.process.logs import logger
from services.runtime.process.metrics import REPORTS

MAX_REPORTS = 2_000_000
"""Reports that are kept while delivery is away, at most."""

_BATCH_REPORTS = 10_000
_BATCH_CONNECTED = 5_000


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


class Handed(NamedTuple):
    """A batch of reports that was given to a stream."""

    sequence: int
    rows: int
    reports: list[Reports]


class Outbox:
    """What waits to go up one stream, and the reports that went up and may not be in the log yet; bounded.

    What devices said goes before who left and who came, so that nobody is sent again what he has acknowledged.
    """

    def __init__(self) -> None:
        self._connected: dict[int, Session] = {}
        self._disconnected: list[int] = []
        self._columns: dict[str, Columns] = {}
        self._full: deque[Columns] = deque()
        self._handed: deque[Handed] = deque()
        self._again: deque[Handed] = deque()
        self._sequence = 0
        self.unrecorded = 0
        """Reports that the log may not have."""
        self.news = asyncio.Event()

    def connected(self, session: Session) -> None:
        self._connected[session.connection] = session
        self.news.set()

    def disconnected(self, session: Session) -> None:
        if self._connected.pop(session.connection, None) is None:
            self._disconnected.append(session.connection)
            self.news.set()

    def report(self, session: Session, msgids: list[int], kind: "OutcomeKind.ValueType", time_ms: int) -> None:
        if self.unrecorded + len(msgids) > MAX_REPORTS:
            logger.error("reports were dropped: delivery has been away for too long", count=len(msgids))
            return
        columns = self._columns.get(session.appkey)
        if columns is None:
            columns = self._columns[session.appkey] = Columns(session.appkey)
        for msgid in msgids:
            columns.add(session, msgid, kind, time_ms)
        self.unrecorded += len(msgids)
        if len(columns) >= _BATCH_REPORTS:
            self._full.append(self._columns.pop(session.appkey))
        self.news.set()

    def recorded(self, sequence: int) -> None:
        """The log has the reports up to this batch."""
        while self._handed and self._handed[0].sequence <= sequence:
            self.unrecorded -= self._handed.popleft().rows
        self.news.set()

    def start_again(self, current: list[Session]) -> None:
        """A new stream: hand in again what the log may not have, then announce everybody."""
        self._connected = {session.connection: session for session in current}
        self._disconnected.clear()
        self._again = deque(self._handed)
        self.news.set()

    def take(self) -> AttachRequest | None:
        """The next batch, or None when nothing waits. Reports stand in the order they came."""
        request = AttachRequest()
        if (handed := self._take_reports()) is not None:
            request.sequence = handed.sequence
            request.reports.extend(handed.reports)
        if not (self._again or self._full or self._columns):
            self._add_comings_and_goings(request)
        return request if request.sequence or request.connected or request.disconnected else None

    def _add_comings_and_goings(self, request: AttachRequest) -> None:
        request.disconnected.extend(self._disconnected)
        self._disconnected = []
        for connection in list(self._connected)[:_BATCH_CONNECTED]:
            s = self._connected.pop(connection)
            request.connected.add(connection=connection, appkey=s.appkey, partition=s.partition, number=s.number)

    def _take_reports(self) -> Handed | None:
        if self._again:
            return self._again.popleft()
        if self._full:
            columns = [self._full.popleft()]
        else:
            columns, self._columns = list(self._columns.values()), {}
        if not columns:
            return None
        count = sum(map(len, columns))
        REPORTS.inc(count)
        self._sequence += 1
        handed = Handed(self._sequence, count, [column.to_proto() for column in columns])
        self._handed.append(handed)
        return handed


def _little(column: "array[int]") -> bytes:
    if byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
