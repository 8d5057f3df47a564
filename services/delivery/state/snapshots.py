"""Restores the state at the start, and saves it every few minutes and at the end."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.delivery.event_writer import EventWriter
from services.delivery.state import blobs as store
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.runtime.errors import UnavailableError
from services.runtime.log.port import NO_ANSWER, Log, Partition, check_log
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.retries import until_available
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.merge import Dated, Merge
from services.runtime.projection.snapshot import SnapshotFile

SNAPSHOT = "delivery.snapshot"
_VERSION = 5
_SLICE = 500
_AHEAD_MS = {PUSH_COMMANDS.name: 10_000, PUSHES.name: 5_000}


class DeliveryFold:
    """The state as a replay sees it, in a directory."""

    def __init__(self, directory: Path, log: Log, dead_letters: DeadLetters, owned: Sequence[int]) -> None:
        self.state = DeliveryState(owned)
        self.file = SnapshotFile(directory / SNAPSHOT, _VERSION)
        saved = self.file.load()
        if saved is not None:
            store.load(self.state, saved.blobs)
        self._folding = Folding(self.state, log, dead_letters, owned, saved.offsets if saved else {})
        self.followers = [self._folding]

    @property
    def partitions(self) -> frozenset[Partition]:
        return self._folding.folded

    def offsets(self) -> dict[Partition, int]:
        return dict(self._folding.reached)

    def digest(self) -> str:
        return store.digest(self.state)

    def close(self) -> None:
        self.file.save(self._folding.reached, store.dump(self.state))


class Folding:
    """Folds the log in the order of its records' times, so that a push comes and goes as it did when it was sent.

    Commands go first and audiences next, by more than clocks differ: no outcome comes before what it speaks of.
    """

    def __init__(
        self,
        state: DeliveryState,
        log: Log,
        dead_letters: DeadLetters,
        owned: Sequence[int],
        offsets: Mapping[Partition, int],
    ) -> None:
        self.reached = dict(offsets)
        self.folded = frozenset(
            [Partition(PUSH_COMMANDS.name, 0), *(Partition(t.name, n) for t in (PUSHES, DELIVERIES) for n in owned)]
        )
        self._state = state
        self._log = log
        self._dead_letters = dead_letters

    async def offsets(self) -> dict[Partition, int]:
        return dict(self.reached)

    async def fold_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """See replay.Fold."""
        await check_log(self._log, "delivery", self.reached)
        merge = Merge(self._log, self.reached, {partition: ends[partition] for partition in self.folded}, _AHEAD_MS)
        try:
            async for batch in merge.batches():
                await asyncio.to_thread(self._fold, batch)
                on_batch(len(batch))
        finally:
            await merge.close()

    def _fold(self, batch: Sequence[Dated]) -> None:
        for record, message, _ in batch:
            try:
                self._state.apply(record, message)
            except ValueError as error:
                self._dead_letters.park(record, error)
            self.reached[Partition(record.topic, record.partition)] = record.offset + 1


class Snapshots:
    """A service, the first of the role: restores, then says `restored`; saves at the very end."""

    name = "delivery snapshots"

    def __init__(self, fold: DeliveryFold, events: EventWriter, log: Log, clock: Clock, every_s: int) -> None:
        self.restored = asyncio.Event()
        self._fold = fold
        self._events = events
        self._log = log
        self._clock = clock
        self._every_ms = every_s * 1000
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="delivery-snapshot")

    async def run(self, ready: asyncio.Event) -> None:
        ends = await until_available(NO_ANSWER, lambda: self._log.ends(self._fold.partitions), role=self.name)
        for follower in self._fold.followers:
            await follower.fold_until(ends, lambda count: None)
        self._events.offsets |= self._fold.offsets()
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
        offsets, blobs = dict(self._events.offsets), []
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
