"""Tenure: whether a follower owns its partitions at present, or stands by for the process that does.

A standby applies the owner's facts as they are written and decides nothing, so it can take over at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from services.runtime.errors import UnavailableError
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition, Record
from services.runtime.process.retries import retry_until_available


class Turns(Protocol):
    """Decides which of the processes with the same partitions owns them; Membership does, by the log."""

    def note_caught_up(self) -> None:
        """The process stands by from now on, and may be chosen."""
        ...

    async def wait(self) -> None:
        """Return once it is this process's turn to own its partitions."""
        ...

    def begin(self, epoch: int) -> None:
        """The process owns its partitions under this epoch, has caught up with all commands, and answers calls."""
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
        """UnavailableError: another process answers for the partitions, or this one does not do so yet."""
        if not self.is_held:
            raise UnavailableError("this process stands by, or has not caught up with the log yet; try again")

    def begin(self, epoch: int) -> None:
        if not self.is_held:
            self._begun.set()
            if self.turns:
                self.turns.begin(epoch)

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
    turns: Turns,
    apply: Callable[[list[Record]], Awaitable[None]],
) -> None:
    """Read the partitions from the starts and apply each batch, until it is this process's turn."""
    turns.note_caught_up()
    reader = await retry_until_available(LOG_UNAVAILABLE, lambda: log.open(starts), role=role)
    turn = asyncio.ensure_future(turns.wait())
    reading: asyncio.Future[list[Record]] | None = None
    try:
        while not turn.done():
            reading = asyncio.ensure_future(retry_until_available(LOG_UNAVAILABLE, reader.read, role=role))
            await asyncio.wait([turn, reading], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await apply(reading.result())
        turn.result()
    finally:
        turn.cancel()
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        await reader.close()
