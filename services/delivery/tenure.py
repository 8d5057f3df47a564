"""The role's tenure: restores the state, stands by for the owner of the partitions, and takes over from it."""

import asyncio

from services.delivery.event_writer import EventWriter
from services.delivery.settings import ROLE_NAME
from services.delivery.standby import Standby
from services.delivery.store import DeliveryStore
from services.domain.topics import PUSH_COMMANDS
from services.runtime.log.appending import append_until_accepted
from services.runtime.log.port import Log, Partition, ends_of
from services.runtime.ownership.tenure import OwnerElection, Tenure
from services.runtime.process.logs import logger
from services.runtime.projection.fencing import SupersededError

_COMMANDS = Partition(PUSH_COMMANDS.name, 0)


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
        """Check that this process owns the partitions, if there is an election. NotOwnerError: another process does."""
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

        What a former owner has confirmed is in the log when it answers no more; what it writes after the announcements
        counts nowhere.
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
