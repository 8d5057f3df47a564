"""Tenure: the time in which a follower owns its partitions. Otherwise it stands by for the process that owns them.

A standby applies the owner's facts as they are written and decides nothing, so it can take over at once. An owner that
was paused or cut off may not know of its successor: it answers calls only while its ownership is confirmed. While the
log serves no process, no other one can have taken over either: then the owner goes on answering queries.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from services.errors import NotOwnerError
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Reader, Record, ends_of
from services.process.retries import retry_until_available
from services.process.runner import Service, run
from services.replica.catch_up import goal_of_now
from services.replica.fencing import SupersededError
from services.replica.positions import AppliedPositions

STANDBY_PAUSE_S = 0.1
"""Pause of a standby after a read that returned few records. It ends early when the standby is elected."""

FEW_RECORDS = 100
"""After a read of fewer records the standby is up to date and pauses, so that the next read returns more at once."""


class OwnerElection(Protocol):
    """Elects the owner among the processes with the same partitions. Membership does so, by the order of the log."""

    def note_caught_up(self) -> None:
        """Stand by from now on: this process may be elected."""
        ...

    async def wait_elected(self) -> None:
        """Return once this process is elected as the owner of its partitions."""
        ...

    def new_epoch(self) -> int:
        """Return an epoch above all earlier ones, for a process whose own partitions have no epochs."""
        ...

    async def announce(self, epoch: int) -> None:
        """Say in the log that this process takes over under this epoch; return once the record is there."""
        ...

    async def wait_alone(self) -> bool:
        """Wait until no former owner answers calls any more; return False if another process takes over before."""
        ...

    async def wait_superseded(self) -> None:
        """Return once another process has taken over."""
        ...

    @property
    def is_confirmed(self) -> bool:
        """Whether no other process can have begun to answer calls for the partitions that this one has claimed."""
        ...

    async def is_log_away(self) -> bool:
        """Return whether no process can have taken over since the latest confirmation, because the log serves none."""
        ...

    def end(self) -> None:
        """Note that this process does not own its partitions any more."""
        ...


class Tenure:
    """A follower's tenure, held while it owns its partitions; without an election it is held from readiness on."""

    def __init__(self, election: OwnerElection | None) -> None:
        self.election = election
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def is_held(self) -> bool:
        return self._begun.is_set()

    @property
    def stands_by(self) -> bool:
        return self.election is not None and not self.is_held

    async def wait(self) -> asyncio.Event:
        """Return once the tenure has begun, with the event that its end sets."""
        await self._begun.wait()
        return self._ended

    def check(self) -> None:
        """Check that this process owns the partitions.

        NotOwnerError: another process owns them, or this one does not own them yet.
        """
        if not self.is_held:
            raise NotOwnerError("this process stands by, or has not caught up with the log yet; try again")
        if self.election and not self.election.is_confirmed:
            raise NotOwnerError("the log has not confirmed lately that this process is the owner; try again")

    async def check_query(self) -> None:
        """Check that this process may answer a query, which changes nothing. NotOwnerError as for `check`."""
        election = self.election
        if self.is_held and election and not election.is_confirmed and await election.is_log_away() and self.is_held:
            return
        self.check()

    def begin(self) -> None:
        self._begun.set()

    def end(self) -> None:
        self._begun.clear()
        self._ended.set()
        self._ended = asyncio.Event()
        if self.election:
            self.election.end()


async def stand_by(
    role: str,
    log: Log,
    starts: Mapping[Partition, int],
    own: Collection[Partition],
    election: OwnerElection,
    apply: Callable[[list[Record]], Awaitable[None]],
) -> None:
    """Read the partitions from the starts and apply the records, until this process is elected.

    A record of another role's partition is applied after all records that the own partitions held when it was read.
    """
    election.note_caught_up()
    reader = await retry_until_available(LOG_UNAVAILABLE, lambda: log.open(starts), role=role)
    elected = asyncio.ensure_future(election.wait_elected())
    reading: asyncio.Future[list[Record]] | None = None
    ordering = _OwnRecordsFirst(role, log, {partition: starts[partition] for partition in own})
    try:
        while not elected.done():
            reading = asyncio.ensure_future(retry_until_available(LOG_UNAVAILABLE, reader.read, role=role))
            await asyncio.wait([elected, reading], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                break
            if records := await ordering.put_in_order(reading.result()):
                await apply(records)
            if len(reading.result()) < FEW_RECORDS:
                await asyncio.wait([elected], timeout=STANDBY_PAUSE_S)
        elected.result()
    finally:
        elected.cancel()
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        await reader.close()


class _OwnRecordsFirst:
    """Puts own records first: holds back those of other roles until the own partitions are read to their ends."""

    def __init__(self, role: str, log: Log, own: Mapping[Partition, int]) -> None:
        """`own`: the next offsets of the own partitions."""
        self._role = role
        self._log = log
        self._own = dict(own)
        self._ends: Mapping[Partition, int] = {}
        self._waiting: list[Record] = []
        self._later: list[Record] = []

    async def put_in_order(self, records: Sequence[Record]) -> list[Record]:
        """Return the records to apply now: first own ones, then those of others that are not held back."""
        due = []
        for record in records:
            if (partition := Partition(record.topic, record.partition)) in self._own:
                due.append(record)
                self._own[partition] = record.offset + 1
            else:
                self._later.append(record)
        while self._waiting or self._later:
            if not self._waiting:
                self._waiting, self._later = self._later, []
                self._ends = await ends_of(self._log, self._role, self._own)
            if any(self._own[partition] < end for partition, end in self._ends.items()):
                break
            due, self._waiting = due + self._waiting, []
        return due


async def own_when_elected(
    role: str,
    log: Log,
    tenure: Tenure,
    election: OwnerElection,
    applied: AppliedPositions,
    partitions: Sequence[Partition],
) -> None:
    """Hold the tenure whenever this process is elected, for a follower that always reads and decides nothing.

    It waits until the former owners answer no more calls. Then the follower applies all records in the log, so that it
    knows all that they have confirmed, and the tenure begins. The follower must have caught up before.
    """
    while True:
        election.note_caught_up()
        await election.wait_elected()
        await election.announce(election.new_epoch())
        if await election.wait_alone():
            goal = await goal_of_now(log, role, partitions)
            await goal.wait_reached(applied)
            tenure.begin()
            await election.wait_superseded()
        tenure.end()


# Services that start only once their process owns its partitions.


class OwnedServices:
    """A service that starts others, in order, once the tenure begins, and stops them in reverse at its own end.

    A standby counts as ready without them. An error of one of them is raised: the process ends, and so does its tenure.
    """

    def __init__(self, name: str, tenure: Tenure, services: Sequence[Service]) -> None:
        self.name = name
        self._tenure = tenure
        self._services = services

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        await self._tenure.wait()
        await run(self._services, lambda: None, stopping=asyncio.Event())


# Ends an owner's wait for records once another process has taken over, before the owner writes again.


class SupersedingWatch:
    """Ends the owner's wait for records once the topic `instances` names a successor.

    The successor's records in the owned partitions tell of it too, but it may have been killed before it wrote one.
    """

    def __init__(self) -> None:
        self._waiting = asyncio.timeout(None)
        self._superseded_s: float | None = None

    @classmethod
    @contextlib.contextmanager
    def of(cls, election: OwnerElection | None) -> "Iterator[SupersedingWatch]":
        """Watch until the end of the block; without an election it never ends a wait."""
        watch = cls()
        watching = asyncio.create_task(watch._run(election)) if election else None
        try:
            yield watch
        finally:
            if watching:
                watching.cancel()

    async def read(self, reader: Reader, role: str) -> list[Record]:
        """Return the next records. SupersededError: another process has taken over before there are any."""
        self._waiting = asyncio.timeout_at(self._superseded_s)
        try:
            async with self._waiting:
                return await retry_until_available(LOG_UNAVAILABLE, reader.read, role=role)
        except TimeoutError:
            if not self._waiting.expired():
                raise
            raise SupersededError("another process says in the log that it owns the partitions") from None

    async def _run(self, election: OwnerElection) -> None:
        await election.wait_superseded()
        self._superseded_s = asyncio.get_running_loop().time()
        with contextlib.suppress(RuntimeError):  # nobody waits at present
            self._waiting.reschedule(self._superseded_s)
