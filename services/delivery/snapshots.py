"""Restores the state at the start, and saves it every few minutes and at the end."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from services.delivery import store
from services.delivery.journal import Journal
from services.delivery.state import DeliveryState
from services.runtime.clock import Clock
from services.runtime.errors import UnavailableError
from services.runtime.follower import Fact, Follower, MemoryStorage
from services.runtime.log import Log, Partition, Record
from services.runtime.logs import logger
from services.runtime.parking import Parking
from services.runtime.snapshot import SnapshotFile
from services.runtime.topics import DELIVERIES, PUSH_COMMANDS, PUSHES

SNAPSHOT = "delivery.snapshot"
_VERSION = 3
_SLICE = 500


class DeliveryFold:
    """The state as a replay sees it: commands first, then audiences, then outcomes."""

    def __init__(self, directory: Path, log: Log, parking: Parking, owned: Sequence[int]) -> None:
        self.state = DeliveryState(owned)
        self.file = SnapshotFile(directory / SNAPSHOT, _VERSION)
        saved = self.file.load()
        if saved is not None:
            store.load(self.state, saved.blobs)
        self._storage = MemoryStorage(saved.offsets if saved else {})
        self.followers = [
            Follower("delivery", log, _Folding(self.state), self._storage, parking, folds=folds)
            for folds in (
                [Partition(PUSH_COMMANDS.name, 0)],
                [Partition(PUSHES.name, number) for number in owned],
                [Partition(DELIVERIES.name, number) for number in owned],
            )
        ]

    @property
    def partitions(self) -> frozenset[Partition]:
        return frozenset().union(*(follower.folded for follower in self.followers))

    def offsets(self) -> dict[Partition, int]:
        return self._storage.offsets()

    def digest(self) -> str:
        return store.digest(self.state)

    def close(self) -> None:
        self.file.save(self._storage.offsets(), store.dump(self.state))


class _Folding:
    """Rules that decide nothing."""

    def __init__(self, state: DeliveryState) -> None:
        self._state = state

    def apply(self, record: Record, message: Any) -> None:
        self._state.apply(record, message)

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        return ()


class Snapshots:
    """A service, the first of the role: restores, then says `restored`; saves at the very end."""

    name = "delivery snapshots"

    def __init__(self, fold: DeliveryFold, journal: Journal, log: Log, clock: Clock, every_s: int) -> None:
        self.restored = asyncio.Event()
        self._fold = fold
        self._journal = journal
        self._log = log
        self._clock = clock
        self._every_ms = every_s * 1000
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="delivery-snapshot")

    async def run(self, ready: asyncio.Event) -> None:
        ends = await self._log.ends(self._fold.partitions)
        for follower in self._fold.followers:
            await follower.fold_until(ends, lambda count: None)
        self._journal.offsets |= self._fold.offsets()
        self.restored.set()
        ready.set()
        try:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + self._every_ms)
                await self._save_or_say()
        finally:
            await self.save()
            self._disk.shutdown()

    async def save(self) -> None:
        """Write a snapshot: offsets as of now, and blobs taken in slices, because others go on meanwhile."""
        offsets, blobs = dict(self._journal.offsets), []
        for blob in store.dump(self._fold.state):
            blobs.append(blob)
            if len(blobs) % _SLICE == 0:
                await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(self._disk, self._fold.file.save, offsets, blobs)

    async def _save_or_say(self) -> None:
        try:
            await self.save()
        except UnavailableError as error:
            logger.error("delivery could not save a snapshot; it tries again later", error=str(error))
