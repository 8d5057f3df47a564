"""Tenure: whether a follower owns its partitions at present, or stands by for the process that does.

A standby applies the owner's facts as they are written and decides nothing, so it can take over at once. An owner that
was paused or cut off may not know of its successor: it answers calls only while its ownership is confirmed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from services.runtime.errors import NotOwnerError
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition, Record
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.positions import AppliedPositions

STANDBY_PAUSE_S = 0.1
"""Pause of a standby after a read that returned few records. It ends with its turn, so a takeover is not later."""

FEW_RECORDS = 100
"""A read of fewer records found the standby up to date: records that come meanwhile are read together."""


class Turns(Protocol):
    """Decides which of the processes with the same partitions owns them; Membership does, by the log."""

    def note_caught_up(self) -> None:
        """The process stands by from now on, and may be chosen."""
        ...

    async def wait(self) -> None:
        """Return once it is this process's turn to own its partitions."""
        ...

    def new_epoch(self) -> int:
        """Return an epoch above all earlier ones, for a process whose partitions have none."""
        ...

    async def announce(self, epoch: int) -> None:
        """Say in the log that this process takes over under this epoch; return once the record is there."""
        ...

    async def wait_alone(self) -> bool:
        """Return True once no former owner answers calls any more, False once another process has taken over."""
        ...

    async def wait_superseded(self) -> None:
        """Return once another process has taken over."""
        ...

    @property
    def is_confirmed(self) -> bool:
        """Whether no other process can have begun to answer calls for the partitions that this one has claimed."""
        ...

    def end(self) -> None:
        """The process does not own its partitions any more."""
        ...


class Tenure:
    """The state of a follower as an owner. Without turns it owns its partitions from its first readiness on."""

    def __init__(self, turns: Turns | None) -> None:
        self.turns = turns
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def is_held(self) -> bool:
        return self._begun.is_set()

    @property
    def stands_by(self) -> bool:
        return self.turns is not None and not self.is_held

    @property
    def end_event(self) -> asyncio.Event:
        """An event that the end of the present tenure sets; another object for each tenure."""
        return self._ended

    async def wait(self) -> asyncio.Event:
        """Return once the tenure has begun, with the event that its end sets."""
        await self._begun.wait()
        return self._ended

    def check(self) -> None:
        """NotOwnerError: another process answers for the partitions, or this one does not do so yet."""
        if not self.is_held:
            raise NotOwnerError("this process stands by, or has not caught up with the log yet; try again")
        if self.turns and not self.turns.is_confirmed:
            raise NotOwnerError("the log has not confirmed lately that this process is the owner; try again")

    def begin(self) -> None:
        self._begun.set()

    def end(self) -> None:
        self._begun.clear()
        self._ended.set()
        self._ended = asyncio.Event()
        if self.turns:
            self.turns.end()


async def stand_by(
    role: str,
    log: Log,
    starts: Mapping[Partition, int],
    own: Collection[Partition],
    turns: Turns,
    apply: Callable[[list[Record]], Awaitable[None]],
) -> None:
    """Read the partitions from the starts and apply the records, until it is this process's turn.

    Records of partitions that are not its own are applied once those are that its own partitions held before.
    """
    turns.note_caught_up()
    reader = await retry_until_available(LOG_UNAVAILABLE, lambda: log.open(starts), role=role)
    turn = asyncio.ensure_future(turns.wait())
    reading: asyncio.Future[list[Record]] | None = None
    others = _Others(role, log, {partition: starts[partition] for partition in own})
    try:
        while not turn.done():
            reading = asyncio.ensure_future(retry_until_available(LOG_UNAVAILABLE, reader.read, role=role))
            await asyncio.wait([turn, reading], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                break
            if records := await others.put_in_order(reading.result()):
                await apply(records)
            if len(reading.result()) < FEW_RECORDS:
                await asyncio.wait([turn], timeout=STANDBY_PAUSE_S)
        turn.result()
    finally:
        turn.cancel()
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        await reader.close()


class _Others:
    """Records of other roles, held back until the own partitions are read as far as they were when those came."""

    def __init__(self, role: str, log: Log, own: Mapping[Partition, int]) -> None:
        """`own`: the next offsets of the own partitions."""
        self._role = role
        self._log = log
        self._own = dict(own)
        self._ends: Mapping[Partition, int] = {}
        self._waiting: list[Record] = []
        self._later: list[Record] = []

    async def put_in_order(self, records: Sequence[Record]) -> list[Record]:
        """Return the records to apply now: the own ones among these, then those of others that need not wait."""
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
                self._ends = await retry_until_available(
                    LOG_UNAVAILABLE, lambda: self._log.ends(self._own), role=self._role
                )
            if any(self._own[partition] < end for partition, end in self._ends.items()):
                break
            due, self._waiting = due + self._waiting, []
        return due


async def take_turns(
    role: str, log: Log, tenure: Tenure, turns: Turns, applied: AppliedPositions, partitions: Sequence[Partition]
) -> None:
    """Hold the tenure whenever it is this process's turn, for a follower that always reads and decides nothing.

    A tenure begins once the follower has applied what the log held when no former owner answered calls any more, so
    that what such an owner has confirmed is known. The follower must have caught up.
    """
    while True:
        turns.note_caught_up()
        await turns.wait()
        await turns.announce(turns.new_epoch())
        if await turns.wait_alone():
            ends = await retry_until_available(LOG_UNAVAILABLE, lambda: log.ends(partitions), role=role)
            await applied.wait((partition, end - 1) for partition, end in ends.items() if end)
            tenure.begin()
            await turns.wait_superseded()
        tenure.end()
