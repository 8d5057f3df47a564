"""Purges of the SQLite files of a role: what an erasure leaves in their unused parts, of all of a while at once."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from services.domain.settings import Settings
from services.domain.topics import ERASURES_PARTITION
from services.errors import UnavailableError
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.metrics import ERASURES_APPLIED
from services.process.retries import retry_until_available
from services.replica import sqlite_purge
from services.replica.follower import Follower
from services.replica.sqlite_store import SqliteStore


class FilePurger:
    """A service that purges the files at its start, and then at intervals, of the persons who were erased meanwhile.

    Each file has a note of what it is purged of, so what a kill interrupts is completed by the next start. It exports
    what is erased in all of them.
    """

    def __init__(
        self,
        role: str,
        stores: Sequence[SqliteStore],
        forgotten_until: Callable[[], Awaitable[int]],
        clock: Clock,
        settings: Settings,
    ) -> None:
        """`forgotten_until` returns up to which offset of `erasures` no row of the stores has a value of a person."""
        self.name = f"{role} purge"
        self._stores = stores
        self._forgotten_until = forgotten_until
        self._clock = clock
        self._batch_ms = settings.erasure_batch_s * 1000
        self._purged_until = min(store.purged_until for store in stores)
        ERASURES_APPLIED.labels(role, "files").set_function(lambda: self._purged_until)

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            await retry_until_available("files are not purged of erased persons yet", self._purge)
            await self._clock.sleep_until(self._clock.now_ms() + self._batch_ms)

    async def _purge(self) -> None:
        """Purge the files. UnavailableError: the log or a file is not available at present."""
        until = await self._forgotten_until()
        if until <= self._purged_until:
            return
        for store in self._stores:
            await purge(store, until)
            reached(Point.ERASURE_FILE_PURGED)
        self._purged_until = until
        logger.info("files are purged of erased persons", purge=self.name, until=until)


async def purge(store: SqliteStore, until: int) -> None:
    """Purge the file in a process of its own. UnavailableError: others are busy with the file, or the disk fails."""
    command = [sys.executable, "-m", sqlite_purge.__name__, str(store.path.absolute()), str(until)]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()  # the file is whole at any moment
        await process.wait()
        raise
    if code:
        raise UnavailableError(f"{store.path} is busy" if code == sqlite_purge.BUSY else f"{store.path} is not purged")


def forgotten_by(follower: Follower) -> Callable[[], Awaitable[int]]:
    """Return a function that says how many erasures a follower of `erasures` has applied, as owner or as standby."""

    async def until() -> int:
        return (await follower.offsets()).get(ERASURES_PARTITION, 0)

    return until
