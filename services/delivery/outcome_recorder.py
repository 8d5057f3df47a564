"""Records what became of messages: rows gather for a moment and go to the log as columns, one batch a partition."""

import asyncio
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, Outcomes
from services.delivery.event_writer import Entry, EventWriter
from services.domain.topics import DELIVERIES
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.metrics import OUTCOMES

MAX_ROWS = 500_000
"""Outcomes in memory beyond which whoever brings more has to wait."""

_GATHER_S = 0.005
_ROWS_A_RECORD = 30_000
_REASON_CHARS = 200
_MAX_REASONS = 255


@dataclass(slots=True)
class Columns:
    """Outcomes of one app in one partition."""

    msgids: "array[int]" = field(default_factory=lambda: array("Q"))
    numbers: "array[int]" = field(default_factory=lambda: array("I"))
    kinds: "array[int]" = field(default_factory=lambda: array("B"))
    times_ms: "array[int]" = field(default_factory=lambda: array("q"))
    reason_indexes: "array[int]" = field(default_factory=lambda: array("B"))
    reasons: dict[str, int] = field(default_factory=dict)
    badges: "array[int]" = field(default_factory=lambda: array("I"))

    def add(self, msgid: int, number: int, kind: int, time_ms: int, reason: str, badge: int | None = None) -> None:
        if badge is not None:
            self.badges.extend(array("I", [0]) * (len(self.msgids) - len(self.badges)))
            self.badges.append(1 + badge)
        self.msgids.append(msgid)
        self.numbers.append(number)
        self.kinds.append(kind)
        self.times_ms.append(time_ms)
        self.reason_indexes.append(self._index(reason[:_REASON_CHARS]) if reason else 0)

    def add_many(self, msgid: int, numbers: Sequence[int], kind: int, time_ms: int) -> None:
        count = len(numbers)
        self.msgids.extend(array("Q", [msgid]) * count)
        self.numbers.extend(numbers)
        self.kinds.extend(array("B", [kind]) * count)
        self.times_ms.extend(array("q", [time_ms]) * count)
        self.reason_indexes.extend(array("B", [0]) * count)

    def _index(self, reason: str) -> int:
        if reason not in self.reasons and len(self.reasons) >= _MAX_REASONS - 1:
            reason = "other"
        return self.reasons.setdefault(reason, len(self.reasons) + 1)

    def _badges(self, at: int) -> bytes:
        if not self.badges:
            return b""
        some = self.badges[at : at + _ROWS_A_RECORD]
        return some.tobytes().ljust(4 * min(_ROWS_A_RECORD, len(self.msgids) - at), b"\0")

    def batches(self, appkey: str) -> list[AppOutcomes]:
        """The rows as messages that each fit into a record."""
        return [
            AppOutcomes(
                appkey=appkey,
                msgids=self.msgids[at : at + _ROWS_A_RECORD].tobytes(),
                numbers=self.numbers[at : at + _ROWS_A_RECORD].tobytes(),
                kinds=self.kinds[at : at + _ROWS_A_RECORD].tobytes(),
                times_ms=self.times_ms[at : at + _ROWS_A_RECORD].tobytes(),
                reason_indexes=self.reason_indexes[at : at + _ROWS_A_RECORD].tobytes(),
                reasons=list(self.reasons),
                badges=self._badges(at),
            )
            for at in range(0, len(self.msgids), _ROWS_A_RECORD)
        ]


Settlement = tuple[int, int, int]
"""Message id, partition, number."""


class OutcomeRecorder:
    """A service: what was added before it stops is in the log when it has stopped."""

    name = "delivery recorder"

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._rows: dict[tuple[int, str], Columns] = {}
        self._settling: set[Settlement] = set()
        self._flushing: set[Settlement] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._count = 0
        self._turn = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def add(
        self,
        partition: int,
        appkey: str,
        msgid: int,
        number: int,
        kind: int,
        time_ms: int,
        reason: str = "",
        badge: int | None = None,
    ) -> None:
        """Queue one outcome; times are milliseconds since 1970, `badge` is the one that the device was sent."""
        self._columns(partition, appkey, 1).add(msgid, number, kind, time_ms, reason, badge)

    def add_many(
        self, partition: int, appkey: str, msgid: int, numbers: Sequence[int], kind: int, time_ms: int
    ) -> None:
        """Queue the same outcome for many devices."""
        self._columns(partition, appkey, len(numbers)).add_many(msgid, numbers, kind, time_ms)

    def settle(
        self,
        partition: int,
        appkey: str,
        msgid: int,
        number: int,
        kind: int,
        time_ms: int,
        reason: str = "",
        badge: int | None = None,
    ) -> None:
        """Queue the outcome after which the device is done with the message, unless one is under way already."""
        if not self.is_settling(partition, msgid, number):
            self._settling.add((msgid, partition, number))
            self.add(partition, appkey, msgid, number, kind, time_ms, reason, badge)

    def is_settling(self, partition: int, msgid: int, number: int) -> bool:
        """Whether the device is done with the message, which the state does not know before the log has it."""
        settlement = (msgid, partition, number)
        return settlement in self._settling or settlement in self._flushing

    async def room(self) -> None:
        """Return once there is room for more; whoever brings outcomes in waits here."""
        await self._room.wait()

    async def recorded(self) -> None:
        """Return once everything added so far is in the log and in the state; it waits for its turn."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._news.set()
        await waiter

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            while True:
                await self._news.wait()
                await asyncio.sleep(_GATHER_S)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Return once everything added so far is in the log and in the state; a caller that goes away stops nothing."""
        task = asyncio.create_task(self._flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        await asyncio.shield(task)

    async def _flush(self) -> None:
        async with self._turn:
            rows, self._rows = self._rows, {}
            waiters, self._waiters = self._waiters, []
            self._flushing, self._settling = self._settling, set()
            self._news.clear()
            if rows:
                reached(Point.OUTCOMES_GATHERED)
            await self._events.write(
                DELIVERIES,
                [
                    Entry(partition, appkey.encode(), DeliveryFact(outcomes=Outcomes(apps=[batch])))
                    for (partition, appkey), columns in rows.items()
                    for batch in columns.batches(appkey)
                ],
            )
            if rows:
                reached(Point.OUTCOMES_APPENDED)
            self._flushing = set()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._count -= sum(len(columns.msgids) for columns in rows.values())
            if self._count < MAX_ROWS:
                self._room.set()
            _count_kinds(rows.values())

    def _columns(self, partition: int, appkey: str, adding: int) -> Columns:
        self._count += adding
        if self._count >= MAX_ROWS:
            self._room.clear()
        self._news.set()
        columns = self._rows.get((partition, appkey))
        if columns is None:
            columns = self._rows[partition, appkey] = Columns()
        return columns


def _count_kinds(rows: Iterable[Columns]) -> None:
    counts = sum((numpy.bincount(columns.kinds, minlength=256) for columns in rows), numpy.zeros(256, numpy.int64))
    for kind in numpy.flatnonzero(counts).tolist():
        name = OutcomeKind.Name(OutcomeKind.ValueType(kind)).removeprefix("OUTCOME_KIND_").lower()
        OUTCOMES.labels(name).inc(int(counts[kind]))
