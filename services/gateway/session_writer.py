"""Writes session facts to the log: sessions opened and closed, app activity, and connection counts each minute."""

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable

from protos.gateway.v1.sessions_pb2 import ConnectionCounts, SessionBatch, SessionEvent, SessionEventKind, SessionFact
from protos.runtime.v1.log_pb2 import Position
from services.domain.ids import RecordStamp
from services.domain.topics import SESSIONS
from services.errors import CarillonError, DeadlineError, InputError
from services.gateway.connections import DeviceSession
from services.log.port import Log, NewRecord
from services.log.topics import partition_of
from services.process import background
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.metrics import APPENDED
from services.replica.peers import WAIT_APPLIED_S, Peers

MAX_EVENTS = 200_000
"""Upper bound of the events that wait while the log is away; beyond it the oldest are dropped, and that is logged."""

_MAX_COUNTS = 60_000
"""Upper bound of the counts of connections that wait: those of six weeks."""

_EVENTS_A_RECORD = 4000
_FLUSH_S = 0.2
_RETRY_S = 1.0
_MINUTE_MS = 60_000

Confirm = Callable[[], None]
"""Tells the device that the log has what it reported."""


class SessionWriter:
    """Service: appends recorded events within 200 ms, app opens at once, in one record a partition and flush.

    A caller that needs an event to count for the next pushes, such as one to an alias's latest active device, awaits
    `wait_applied`.
    """

    name = "gateway-sessions"

    def __init__(
        self,
        log: Log,
        peers: Peers,
        clock: Clock,
        gateway: str,
        partitions: int,
        count: Callable[[], dict[str, int]],
    ) -> None:
        self._log = log
        self._peers = peers
        self._clock = clock
        self._gateway = gateway
        self._stamp = RecordStamp("gateway")
        self._partitions = partitions
        self._count = count
        self._events: deque[tuple[int, SessionEvent, Confirm | None]] = deque(maxlen=MAX_EVENTS)
        self._counts: deque[SessionFact] = deque(maxlen=_MAX_COUNTS)
        self._unsent: list[NewRecord] = []
        self._unconfirmed: list[Confirm] = []
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        self._recorded = self._flushed = self._dropped = 0
        self._has_flushed = asyncio.Event()
        self._appended: dict[int, Position] = {}

    def record(
        self,
        session: DeviceSession,
        kind: "SessionEventKind.ValueType",
        reason: str = "",
        confirm: Confirm | None = None,
    ) -> None:
        """Queue the event; `confirm` is called once it is in the log."""
        event = SessionEvent(
            appkey=session.appkey,
            number=session.number,
            kind=kind,
            time_ms=self._clock.now_ms(),
            connection=session.connection,
            reason=reason,
        )
        self._dropped += len(self._events) == MAX_EVENTS
        self._events.append((session.partition, event, confirm))
        self._recorded += 1
        self._changed.set()
        if kind == SessionEventKind.SESSION_EVENT_KIND_APP_OPENED:
            self._urgent.set()

    async def wait_applied(self, session: DeviceSession) -> None:
        """Return once the roles that read sessions have applied all events of this session so far.

        DeadlineError: that takes longer than WAIT_APPLIED_S.
        """
        recorded = self._recorded
        self._urgent.set()
        try:
            async with asyncio.timeout(WAIT_APPLIED_S):
                while self._flushed < recorded:
                    await self._has_flushed.wait()
        except TimeoutError:
            raise DeadlineError("the log does not accept session facts; repeat the request") from None
        if (position := self._appended.get(session.partition)) is not None:
            await self._peers.wait_applied([position])

    async def run(self, ready: asyncio.Event) -> None:
        counting = background.start_endless("count of connections", self._count_minutes())
        ready.set()
        try:
            while True:
                await self._changed.wait()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_FLUSH_S):
                        await self._urgent.wait()
                await self._flush()
        finally:
            counting.cancel()
            await self._last_flush()

    async def _count_minutes(self) -> None:
        while True:
            minute_ms = (self._clock.now_ms() // _MINUTE_MS + 1) * _MINUTE_MS
            await self._clock.sleep_until(minute_ms)
            counts = ConnectionCounts(
                gateway=self._gateway,
                minute_ms=self._clock.now_ms() // _MINUTE_MS * _MINUTE_MS,
                connections_by_app=self._count(),
            )
            self._counts.append(self._stamped(SessionFact(counts=counts)))
            self._changed.set()

    async def _flush(self) -> None:
        self._changed.clear()
        self._urgent.clear()
        recorded = self._recorded
        self._unsent += self._new_records()
        while self._unsent and not await self._append():
            await asyncio.sleep(_RETRY_S)
        self._flushed = recorded
        self._has_flushed.set()
        self._has_flushed = asyncio.Event()

    async def _last_flush(self) -> None:
        self._unsent += self._new_records()
        if self._unsent and not await self._append():
            logger.error("session facts were lost at the stop", records=len(self._unsent))

    async def _append(self) -> bool:
        new_records = self._unsent
        reached(Point.SESSIONS_GATHERED)
        try:
            offsets = await self._log.append(new_records)
        except InputError as error:
            logger.error("the log refused session facts", error=str(error), records=len(new_records))
        except CarillonError as error:
            logger.warning("session facts could not be appended; trying again", error=str(error))
            return False
        else:
            for new_record, offset in zip(new_records, offsets, strict=True):
                place = Position(topic=new_record.topic, partition=new_record.partition, offset=offset)
                self._appended[new_record.partition] = place
            for confirm in self._unconfirmed:
                confirm()
        reached(Point.SESSIONS_APPENDED)
        self._unsent = []
        self._unconfirmed = []
        for new_record in new_records:
            APPENDED.labels(new_record.topic).inc()
        return True

    def _new_records(self) -> list[NewRecord]:
        if self._dropped:
            logger.error("session events were dropped: the log was away for too long", count=self._dropped)
            self._dropped = 0
        by_partition: dict[int, list[SessionEvent]] = defaultdict(list)
        while self._events:
            partition, event, confirm = self._events.popleft()
            by_partition[partition].append(event)
            if confirm is not None:
                self._unconfirmed.append(confirm)
        new_records: list[NewRecord] = []
        for partition, events in by_partition.items():
            for start in range(0, len(events), _EVENTS_A_RECORD):
                batch = SessionBatch(events=events[start : start + _EVENTS_A_RECORD])
                new_records.append(self._new_record(partition, self._stamped(SessionFact(batch=batch))))
        while self._counts:
            own = partition_of(self._gateway.encode(), self._partitions)
            new_records.append(self._new_record(own, self._counts.popleft()))
        return new_records

    def _new_record(self, partition: int, fact: SessionFact) -> NewRecord:
        return NewRecord(SESSIONS.name, partition, self._gateway.encode(), fact.SerializeToString(deterministic=True))

    def _stamped(self, fact: SessionFact) -> SessionFact:
        self._stamp.complete(fact.meta, self._clock.now_ms())
        return fact
