"""Restores delivery's state at the start, and saves it every few minutes and at the end."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.delivery.journal import Journal
from services.delivery.state import DeliveryState
from services.runtime.clock import Clock
from services.runtime.follower import Fact, Follower, MemoryStorage
from services.runtime.log import Log, Partition, Record
from services.runtime.parking import Parking
from services.runtime.snapshot import SnapshotFile
from services.runtime.topics import DELIVERIES, PUSH_COMMANDS, PUSHES

SNAPSHOT = "delivery.snapshot"
SOURCE = Partition(PUSH_COMMANDS.name, 0)
_VERSION = 1


class DeliveryFold:
    """The state as a replay sees it: commands first, then audiences, then outcomes."""

    def __init__(self, directory: Path, log: Log, parking: Parking, owned: Sequence[int]) -> None:
        self.state = DeliveryState(owned)
        self.file = SnapshotFile(directory / SNAPSHOT, _VERSION)
        saved = self.file.load()
        if saved is not None:
            self.state.load(saved.blobs)
        self._storage = MemoryStorage(saved.offsets if saved else {})
        self.followers = [
            Follower("delivery", log, _Folding(self.state), self._storage, parking, folds=folds)
            for folds in (
                [SOURCE],
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
        return self.state.digest()

    def close(self) -> None:
        offsets = self._storage.offsets()
        self.file.save({**offsets, SOURCE: self.state.resume_at(offsets.get(SOURCE, 0))}, self.state.dump())


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

    def __init__(
        self, fold: DeliveryFold, journal: Journal, lock: asyncio.Lock, log: Log, clock: Clock, every_s: int
    ) -> None:
        self.restored = asyncio.Event()
        self._fold = fold
        self._journal = journal
        self._lock = lock
        self._log = log
        self._clock = clock
        self._every_ms = every_s * 1000

    async def run(self, ready: asyncio.Event) -> None:
        commands_from = self._fold.offsets().get(SOURCE, 0)
        ends = await self._log.ends(self._fold.partitions)
        for follower in self._fold.followers:
            await follower.fold_until(ends, lambda count: None)
        self._journal.offsets |= {**self._fold.offsets(), SOURCE: commands_from}
        self.restored.set()
        ready.set()
        try:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + self._every_ms)
                async with self._lock:
                    await self.save()
        finally:
            await self.save()

    async def save(self) -> None:
        """Write the snapshot; the file is written in a thread, from blobs taken at one moment."""
        offsets, blobs = dict(self._journal.offsets), list(self._fold.state.dump())
        offsets[SOURCE] = self._fold.state.resume_at(offsets.get(SOURCE, 0))
        await asyncio.to_thread(self._fold.file.save, offsets, blobs)
