"""The role's tenure: restores the state, stands by for the owner of the partitions, and takes over from it."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from services.delivery.event_writer import EventWriter
from services.delivery.settings import ROLE_NAME
from services.delivery.store import DeliveryStore
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Reader, Record, append_until_accepted, ends_of
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.dead_letters import UNUSABLE, DeadLetters
from services.replica.fencing import SupersededError
from services.replica.merge import CausalOrder, DecodedRecord
from services.replica.positions import AppliedPositions
from services.replica.tenure import FEW_RECORDS, STANDBY_PAUSE_S, OwnerElection, Tenure

# Folds the log into the state of a process that does not own its partitions: first its content, then new records.

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Upper bound of the records that wait for their causes; a standby beyond it reads the log merged by time."""

_COMMANDS = Partition(PUSH_COMMANDS.name, 0)
_ORDER = (PUSH_COMMANDS.name, PUSHES.name, DELIVERIES.name)
_BATCH = 200


class Standby:
    """Keeps the state up to date with one reader, which waits while the log does not grow.

    `applied` advances with the commands that the state holds.
    """

    def __init__(
        self,
        store: DeliveryStore,
        events: EventWriter,
        log: Log,
        dead_letters: DeadLetters,
        applied: AppliedPositions,
    ) -> None:
        self._store = store
        self._events = events
        self._log = log
        self._dead_letters = dead_letters
        self._applied = applied
        self._reader: Reader | None = None
        self._order = CausalOrder(log.topics, {})
        self._read: dict[Partition, int] = {}

    async def catch_up(self) -> None:
        """Apply all records that the log holds now, in bounded memory."""
        ends = await ends_of(self._log, ROLE_NAME, self._store.partitions)
        async with self._store.building:
            self._store.is_built = False
            for follower in self._store.followers:
                await follower.apply_until(ends, lambda count: self._note_applied())
            self._store.is_built = True

    async def follow(self, wait_elected: Coroutine[Any, Any, None]) -> None:
        """Apply the records that come until `wait_elected` has returned."""
        waiting = asyncio.create_task(wait_elected)
        reading: asyncio.Task[list[Record]] | None = None
        try:
            while not waiting.done():
                reading = asyncio.create_task(self._more())
                await asyncio.wait([waiting, reading], return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    records, reading = reading.result(), None
                    self._fold(self._order.put(records))
                    if self._order.held_bytes > MAX_HELD_BYTES:
                        await self.close()
                        await self.catch_up()
                    if len(records) < FEW_RECORDS:
                        await asyncio.wait([waiting], timeout=STANDBY_PAUSE_S)
            waiting.result()
        finally:
            for task in (waiting, reading):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
        if reading is not None and not reading.cancelled():  # it has read records that are not folded yet
            self._fold(self._order.put(reading.result()))

    async def fold_until(self, ends: Mapping[Partition, int]) -> None:
        """Apply the records before these ends, last those whose causes the log does not hold."""
        while any(self._next_to_read(partition) < end for partition, end in ends.items()):
            records = await self._more()
            self._fold(self._order.put(records))
        self._fold(self._order.rest())

    async def close(self) -> None:
        """Forget the records that were read and not applied; they are read again."""
        self._order, self._read = CausalOrder(self._log.topics, {}), {}
        if self._reader is not None:
            await self._reader.close()
            self._reader = None

    async def _more(self) -> list[Record]:
        reader = self._reader or await self._open()
        records = await retry_until_available(LOG_UNAVAILABLE, lambda: reader.read(_BATCH), role=ROLE_NAME)
        self._read |= {Partition(record.topic, record.partition): record.offset + 1 for record in records}
        return records

    async def _open(self) -> Reader:
        """Open a reader where the state is, with an order of its own."""
        partitions = sorted(self._store.partitions, key=lambda each: (_ORDER.index(each.topic), each.number))
        starts = {partition: self._store.reached.get(partition, 0) for partition in partitions}
        self._order, self._read = CausalOrder(self._log.topics, starts), starts
        self._reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(starts), role=ROLE_NAME)
        return self._reader

    def _next_to_read(self, partition: Partition) -> int:
        return self._read.get(partition, self._store.reached.get(partition, 0))

    def _fold(self, due: Iterable[DecodedRecord]) -> None:
        for record, message in due:
            try:
                self._events.apply(record, message)
            except UNUSABLE as error:
                self._dead_letters.add(record, error)
                self._events.skip(record)
        self._note_applied()

    def _note_applied(self) -> None:
        self._applied.advance({_COMMANDS: self._store.reached.get(_COMMANDS, 0)})


class DeliveryTenure:
    """Service that brings the state up to the end of the log, waits until it is elected, and begins the tenure.

    Without an election the tenure begins at once. With one the service is ready, as a standby, when the state has
    caught up; until it is elected it folds what the owner writes. A tenure lasts until the process ends, because what
    it sends is in memory only.

    `restored_offset`: the first offset of push-commands that was not in the log when the tenure began.
    """

    name = "delivery tenure"

    def __init__(
        self, store: DeliveryStore, events: EventWriter, standby: Standby, log: Log, election: OwnerElection | None
    ) -> None:
        self.tenure = Tenure(election)
        self.restored_offset = 0
        self._store = store
        self._events = events
        self._standby = standby
        self._log = log
        self._taking_over = asyncio.Event()

    def check(self) -> None:
        """Check that this process owns the partitions, if there is an election.

        NotOwnerError: another process owns them.
        """
        if self.tenure.election:
            self.tenure.check()

    async def wait(self) -> None:
        """Return once the tenure has begun. NotOwnerError: this process does not take over at present."""
        if not self._taking_over.is_set():
            self.check()
        await self.tenure.wait()

    async def run(self, ready: asyncio.Event) -> None:
        election = self.tenure.election
        try:
            await self._standby.catch_up()
            if election is None:
                await self._begin_without_election()
                ready.set()
                await asyncio.Event().wait()
            else:
                ready.set()
                await self._take_over(election)
                await election.wait_superseded()
                raise SupersededError("another process says in the log that it owns the partitions of delivery")
        finally:
            await self._standby.close()
            self.tenure.end()

    async def _begin_without_election(self) -> None:
        await append_until_accepted(self._log, self._events.announcements(), self.name)
        await self._standby.catch_up()
        self._begin()

    async def _take_over(self, election: OwnerElection) -> None:
        """Stand by until no other process owns the partitions, and begin the tenure.

        All that a former owner has confirmed is in the log once it answers no calls; readers ignore what it writes
        after the announcements.
        """
        while True:
            election.note_caught_up()
            await self._standby.follow(election.wait_elected())
            self._taking_over.set()
            await election.announce(election.new_epoch())
            if await election.wait_alone():
                break
            logger.warning("another process has taken over; standing by", role=ROLE_NAME)
            self._taking_over.clear()
            election.end()
        await self._fold_all()
        await append_until_accepted(self._log, self._events.announcements(), self.name)
        await self._fold_all()
        self._begin()

    async def _fold_all(self) -> None:
        ends = await ends_of(self._log, self.name, self._store.partitions)
        await self._standby.fold_until(ends)

    def _begin(self) -> None:
        self._events.begin(self._store.offsets())
        self.restored_offset = self._events.offsets.get(_COMMANDS, 0)
        self.tenure.begin()
