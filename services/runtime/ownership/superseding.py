"""Tells an owner that waits for records that another process has taken over, before it writes again."""

import asyncio
import contextlib
from collections.abc import Iterator

from services.runtime.log.port import LOG_UNAVAILABLE, Reader, Record
from services.runtime.ownership.tenure import OwnerElection
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.fencing import SupersededError


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
