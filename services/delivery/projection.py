"""Follows push-commands: applies them to the state, decides the facts that follow, and starts the sending."""

import asyncio
from collections.abc import Iterable
from itertools import islice

from google.protobuf.message import DecodeError

from protos.delivery.v1.delivery_pb2 import PushFact
from services.delivery import decide
from services.delivery.android.fanout import Fanout
from services.delivery.audience_bitmaps import AudienceBitmapResolver
from services.delivery.event_writer import EventWriter, NewFact
from services.delivery.ios.delivery import IosDelivery
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import RequestedPush
from services.domain.topics import PUSH_COMMANDS, PUSHES, decode
from services.runtime.errors import UnavailableError
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition, Reader, Record
from services.runtime.process.clock import Clock
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.logs import logger
from services.runtime.process.metrics import PENDING, PUSHES_STARTED
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.positions import AppliedPositions

_COMMANDS = Partition(PUSH_COMMANDS.name, 0)
_BATCH = 1000
_RETRY_MS = 500


class PushProjection:
    """A service that follows push-commands.

    Commands are applied to the state first and decided from there, so a restart decides what was left undecided.
    """

    name = "delivery"

    def __init__(
        self,
        log: Log,
        events: EventWriter,
        state: DeliveryState,
        audiences: AudienceBitmapResolver,
        fanout: Fanout,
        ios: IosDelivery,
        recorder: OutcomeRecorder,
        clock: Clock,
        dead_letters: DeadLetters,
    ) -> None:
        self.applied = AppliedPositions()
        self.applied.advance({_COMMANDS: 0})
        self._log = log
        self._events = events
        self._state = state
        self._audiences = audiences
        self._fanout = fanout
        self._ios = ios
        self._recorder = recorder
        self._clock = clock
        self._dead_letters = dead_letters

    async def run(self, ready: asyncio.Event) -> None:
        start = self._events.offsets.get(_COMMANDS, 0)
        ends = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.ends([_COMMANDS]), role=self.name)
        reader = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.open({_COMMANDS: start}), role=self.name
        )
        try:
            while True:
                await self._decide()
                self.applied.advance({_COMMANDS: self._events.offsets.get(_COMMANDS, 0)})
                if self.applied.has(_COMMANDS, ends[_COMMANDS] - 1):
                    ready.set()
                for record in await self._read(reader):
                    self._apply(record)
        finally:
            await reader.close()
            await self._fanout.close()

    async def _read(self, reader: Reader) -> list[Record]:
        while True:
            try:
                return await reader.read(max_records=_BATCH)
            except UnavailableError as error:
                logger.warning(LOG_UNAVAILABLE, role=self.name, error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    def _apply(self, record: Record) -> None:
        try:
            self._events.apply(record, decode(record))
        except (DecodeError, ValueError) as error:
            self._dead_letters.add(record, error)
            self._events.skip(record)

    async def _decide(self) -> None:
        """Start all requested pushes in the order of the log, then end the cancelled ones."""
        while batch := list(islice(self._state.requested.values(), _BATCH)):
            await self._recorder.wait_capacity()
            await self._start(batch)
        if cancels := decide.cancel(self._state):
            reached(Point.CANCEL_DECIDED)
            await self._write(cancels)
            reached(Point.CANCEL_DONE)
        PENDING.set(len(self._state.started))

    async def _start(self, batch: list[RequestedPush]) -> None:
        """Write the audiences of these pushes to the log, then send the pushes."""
        starting = [(push.send.msgid, sorted(push.remaining)) for push in batch]
        audiences = await self._audiences.resolve(batch)
        facts = [fact for push, audience in zip(batch, audiences, strict=True) for fact in decide.start(push, audience)]
        reached(Point.PUSH_DECIDED)
        await self._write(facts)
        reached(Point.PUSH_STARTED)
        self._send(starting)
        reached(Point.PUSH_SENT)
        PUSHES_STARTED.inc(len(facts))

    def _send(self, starting: Iterable[tuple[int, list[int]]]) -> None:
        now_ms = self._clock.now_ms()
        started = []
        for msgid, partitions in starting:
            push = self._state.started.get(msgid)
            if push is None or push.expires_ms <= now_ms or msgid in self._state.pending_cancels:
                continue
            active = [partition for partition in partitions if partition in push.active_parts]
            if push.is_ios:
                self._ios.start(push, active)
            else:
                started.append((push, active))
        self._fanout.start(started)

    async def _write(self, facts: list[PushFact]) -> None:
        await self._events.write(PUSHES, [NewFact(fact.partition, str(fact.msgid).encode(), fact) for fact in facts])
