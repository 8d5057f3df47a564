"""Follows `push-commands`: fixes audiences, starts and cancels pushes, and lets them go out."""

import asyncio
from collections.abc import Iterable
from itertools import islice

from google.protobuf.message import DecodeError

from protos.delivery.v1.delivery_pb2 import PushFact
from services.delivery import decide
from services.delivery.android.fanout import Fanout
from services.delivery.audiences import Audiences
from services.delivery.event_writer import Entry, EventWriter
from services.delivery.ios.delivery import IosDelivery
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import Waiting
from services.domain.topics import PUSH_COMMANDS, PUSHES, decode
from services.runtime.errors import UnavailableError
from services.runtime.log.port import NO_ANSWER, Log, Partition, Reader, Record
from services.runtime.process.clock import Clock
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.logs import logger
from services.runtime.process.metrics import PENDING, PUSHES_STARTED
from services.runtime.process.retries import until_available
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.positions import Progress

SOURCE = Partition(PUSH_COMMANDS.name, 0)
_BATCH = 1000
_RETRY_MS = 500


class Commands:
    """A service. Reading only notes what is asked for; what is noted is then decided, also after a restart."""

    name = "delivery"

    def __init__(
        self,
        log: Log,
        events: EventWriter,
        state: DeliveryState,
        audiences: Audiences,
        fanout: Fanout,
        ios: IosDelivery,
        recorder: OutcomeRecorder,
        clock: Clock,
        dead_letters: DeadLetters,
    ) -> None:
        self.progress = Progress()
        self.progress.advance({SOURCE: 0})
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
        start = self._events.offsets.get(SOURCE, 0)
        end = (await until_available(NO_ANSWER, lambda: self._log.ends([SOURCE]), role=self.name))[SOURCE]
        reader = await until_available(NO_ANSWER, lambda: self._log.open({SOURCE: start}), role=self.name)
        try:
            while True:
                await self._decide()
                self.progress.advance({SOURCE: self._events.offsets.get(SOURCE, 0)})
                if self.progress.has(SOURCE, end - 1):
                    ready.set()
                for record in await self._read(reader):
                    self._note(record)
        finally:
            await reader.close()
            await self._fanout.close()

    async def _read(self, reader: Reader) -> list[Record]:
        while True:
            try:
                return await reader.read(max_records=_BATCH)
            except UnavailableError as error:
                logger.warning(NO_ANSWER, role=self.name, error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    def _note(self, record: Record) -> None:
        try:
            self._events.fold(record, decode(record))
        except (DecodeError, ValueError) as error:
            self._dead_letters.park(record, error)
            self._events.pass_by(record)

    async def _decide(self) -> None:
        """Start and cancel all that is asked for, in the order of the log."""
        while batch := list(islice(self._state.waiting.values(), _BATCH)):
            await self._recorder.room()
            await self._start(batch)
        if cancels := decide.cancel(self._state):
            reached(Point.CANCEL_DECIDED)
            await self._write(cancels)
            reached(Point.CANCEL_DONE)
        PENDING.set(len(self._state.pushes))

    async def _start(self, batch: list[Waiting]) -> None:
        """Fix the audiences of all these pushes in the log, then send them."""
        starting = [(waiting.send.msgid, sorted(waiting.missing)) for waiting in batch]
        audiences = await self._audiences.of(batch)
        facts = [
            fact for waiting, audience in zip(batch, audiences, strict=True) for fact in decide.start(waiting, audience)
        ]
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
            push = self._state.pushes.get(msgid)
            if push is None or push.expires_ms <= now_ms or msgid in self._state.cancels:
                continue
            here = [partition for partition in partitions if partition in push.parts]
            if push.is_ios:
                self._ios.start(push, here)
            else:
                started.append((push, here))
        self._fanout.start(started)

    async def _write(self, facts: list[PushFact]) -> None:
        """Nothing else runs between the facts being folded and the caller's next step."""
        entries = [Entry(fact.partition, str(fact.msgid).encode(), fact) for fact in facts]
        await self._events.write(PUSHES, entries)
