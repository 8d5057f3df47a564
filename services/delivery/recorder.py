"""Records what became of messages: rows gather for a moment and go to the log as columns, one batch a partition."""

import asyncio
from array import array
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, Outcomes
from services.delivery.journal import Entry, Journal
from services.runtime.metrics import OUTCOMES
from services.runtime.topics import DELIVERIES

_GATHER_S = 0.005
_MAX_ROWS = 1_000_000
_ROWS_A_RECORD = 30_000


@dataclass(slots=True)
class Columns:
    """Outcomes of one app in one partition."""

    msgids: "array[int]" = field(default_factory=lambda: array("Q"))
    numbers: "array[int]" = field(default_factory=lambda: array("I"))
    kinds: "array[int]" = field(default_factory=lambda: array("B"))
    times_ms: "array[int]" = field(default_factory=lambda: array("q"))
    reason_indexes: "array[int]" = field(default_factory=lambda: array("B"))
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, msgid: int, number: int, kind: int, time_ms: int, reason: str) -> None:
        self.msgids.append(msgid)
        self.numbers.append(number)
        self.kinds.append(kind)
        self.times_ms.append(time_ms)
        self.reason_indexes.append(self._index(reason))

    def add_many(self, msgid: int, numbers: NDArray[numpy.uint32], kind: int, time_ms: int) -> None:
        count = len(numbers)
        self.msgids.frombytes(numpy.full(count, msgid, "<u8").tobytes())
        self.numbers.frombytes(numbers.astype("<u4").tobytes())
        self.kinds.frombytes(bytes([kind]) * count)
        self.times_ms.frombytes(numpy.full(count, time_ms, "<i8").tobytes())
        self.reason_indexes.frombytes(bytes(count))

    def _index(self, reason: str) -> int:
        if not reason:
            return 0
        if reason not in self.reasons and len(self.reasons) == 255:
            reason = next(iter(self.reasons))
        return self.reasons.setdefault(reason, len(self.reasons) + 1)

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
            )
            for at in range(0, len(self.msgids), _ROWS_A_RECORD)
        ]


class Recorder:
    """A service: what was added before it stops is in the log when it has stopped."""

    name = "delivery recorder"

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows: dict[tuple[int, str], Columns] = {}
        self._count = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def add(
        self, partition: int, appkey: str, msgid: int, number: int, kind: int, time_ms: int, reason: str = ""
    ) -> None:
        """Queue one outcome; times are milliseconds since 1970."""
        self._columns(partition, appkey, 1).add(msgid, number, kind, time_ms, reason)
        OUTCOMES.labels(_name(kind)).inc()

    def add_many(
        self, partition: int, appkey: str, msgid: int, numbers: NDArray[numpy.uint32], kind: int, time_ms: int
    ) -> None:
        """Queue the same outcome for many devices."""
        self._columns(partition, appkey, len(numbers)).add_many(msgid, numbers, kind, time_ms)
        OUTCOMES.labels(_name(kind)).inc(len(numbers))

    async def room(self) -> None:
        """Return once there is room for more; whoever brings outcomes in waits here."""
        await self._room.wait()

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
        """Return once everything added so far is in the log and in the state."""
        rows, self._rows = self._rows, {}
        self._news.clear()
        entries = [
            Entry(DELIVERIES, partition, appkey.encode(), DeliveryFact(outcomes=Outcomes(apps=[batch])))
            for (partition, appkey), columns in rows.items()
            for batch in columns.batches(appkey)
        ]
        await self._journal.write(entries)
        self._count -= sum(len(columns.msgids) for columns in rows.values())
        if self._count < _MAX_ROWS:
            self._room.set()

    def _columns(self, partition: int, appkey: str, adding: int) -> Columns:
        self._count += adding
        if self._count >= _MAX_ROWS:
            self._room.clear()
        self._news.set()
        return self._rows.setdefault((partition, appkey), Columns())


def _name(kind: int) -> str:
    return OutcomeKind.Name(OutcomeKind.ValueType(kind)).removeprefix("OUTCOME_KIND_").lower()
