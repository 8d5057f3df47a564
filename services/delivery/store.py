"""The state, restored from its snapshot file and folded from the log."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from services.delivery.event_writer import EventWriter
from services.delivery.state import serialization
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.errors import UnavailableError
from services.log.identity import check_log_identity
from services.log.port import Log, Partition, Record, RecordMark, check_offsets, mark_of
from services.process.clock import Clock
from services.process.logs import logger
from services.process.worker_thread import WorkerThread
from services.replica.dead_letters import UNUSABLE, DeadLetters
from services.replica.fencing import SupersededError
from services.replica.merge import MergedReader, TimedRecord
from services.replica.snapshot import SnapshotFile

SNAPSHOT = "delivery.snapshot"
_VERSION = 11

_LEAD_MS = {PUSH_COMMANDS.name: 10_000, PUSHES.name: 5_000}
"""Time in ms by which records of these topics are merged before outcomes that name no cause."""


class DeliveryStore:
    """The state in a directory, for the role and for replays; opened at its snapshot (see replay.State).

    `reached` holds the next offset of each partition that the state has not applied, `last` the last record that it has
    applied since it was opened; the code that applies records advances both. `building` is held while a thread applies
    records, and while a snapshot is taken; `is_built` is False until a thread has caught up with the log, and while one
    does so again.
    """

    def __init__(self, directory: Path, log: Log, dead_letters: DeadLetters, owned: Sequence[int]) -> None:
        check_log_identity(directory, log, "delivery")
        self.state = DeliveryState(owned)
        self.file = SnapshotFile(directory / SNAPSHOT, _VERSION)
        saved = self.file.load()
        if saved is not None:
            serialization.load(self.state, saved.blobs)
        self.reached = dict(saved.offsets) if saved else {}
        self.last: dict[Partition, Record] = {}
        self._saved_marks = saved.marks if saved else {}
        self._follower = MergedFollower(self, log, dead_letters, owned)
        self.followers = [self._follower]
        self.building = asyncio.Lock()
        self.is_built = False

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions of the log that the state is folded from."""
        return self._follower.sources

    def offsets(self) -> dict[Partition, int]:
        return dict(self.reached)

    def marks(self) -> dict[Partition, RecordMark]:
        """Return the marks of the last records that the state has applied."""
        return {**self._saved_marks, **{p: mark_of(record.offset, record) for p, record in self.last.items()}}

    def digest(self) -> str:
        return serialization.digest(self.state)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def save(self) -> None:
        """Save a snapshot."""
        self.file.save(self.reached, serialization.dump(self.state), self.marks())


class MergedFollower:
    """Folds the three topics merged by record time, so that the state stays as small as it was when it was live.

    Causes are folded first: commands before audiences, audiences before outcomes. Outcomes of former versions name no
    cause; there the times decide (`_LEAD_MS`).
    """

    def __init__(
        self,
        store: DeliveryStore,
        log: Log,
        dead_letters: DeadLetters,
        owned: Sequence[int],
    ) -> None:
        self._store = store
        self._reached = store.reached
        self.sources = frozenset(
            [Partition(PUSH_COMMANDS.name, 0), *(Partition(t.name, n) for t in (PUSHES, DELIVERIES) for n in owned)]
        )
        self._state = store.state
        self._log = log
        self._dead_letters = dead_letters

    async def offsets(self) -> dict[Partition, int]:
        return dict(self._reached)

    async def apply_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Apply the log up to the ends; see ReplayableProjection."""
        await check_offsets(self._log, "delivery", self._reached, self._store.marks())
        merge = MergedReader(
            self._log, self._reached, {partition: ends[partition] for partition in sorted(self.sources)}, _LEAD_MS
        )
        try:
            async for batch in merge.batches():
                await asyncio.to_thread(self._apply, batch)
                on_batch(len(batch))
        finally:
            await merge.close()

    def _apply(self, batch: Sequence[TimedRecord]) -> None:
        for record, message, _ in batch:
            try:
                self._state.apply(record, message)
            except UNUSABLE as error:
                self._dead_letters.add(record, error)
            partition = Partition(record.topic, record.partition)
            self._reached[partition] = record.offset + 1
            self._store.last[partition] = record


# Saves the state on disk every few minutes and at the stop.

_SLICE_BYTES = 64 * 1024
_BLOB_BYTES = 100


class Snapshots:
    """Saves snapshots, as owner and as standby.

    It starts before the services that change the state, so it stops after them, and then saves the last one.
    A state that is just being built from the log is not saved.
    """

    name = "delivery snapshots"

    def __init__(self, store: DeliveryStore, events: EventWriter, clock: Clock, every_s: int) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._every_ms = every_s * 1000
        self._disk = WorkerThread("delivery-snapshot")

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + self._every_ms)
                await self.save_or_log()
        finally:
            with contextlib.suppress(SupersededError):  # the state holds starts that count nowhere
                await self.save()
            self._disk.shutdown()

    async def save(self) -> None:
        """Write a snapshot: the offsets of now, and blobs taken in slices, between which other tasks run.

        It holds no start that the log does not have: a restarted process writes such a start once more.
        """
        async with self._store.building:
            if not self._store.is_built:
                return
            offsets, marks, blobs, slice_bytes = dict(self._store.reached), self._store.marks(), [], 0
            for key, value in serialization.dump(self._store.state):
                blobs.append((key, value))
                slice_bytes += len(value) + _BLOB_BYTES
                if slice_bytes >= _SLICE_BYTES:
                    slice_bytes = 0
                    await asyncio.sleep(0)
        await self._events.write_starts()
        await self._disk.call(partial(self._store.file.save, offsets, blobs, marks))

    async def save_or_log(self) -> bool:
        """Save a snapshot; return False if the disk does not take it."""
        try:
            await self.save()
        except UnavailableError as error:
            logger.error("delivery could not save a snapshot; it tries again later", error=str(error))
            return False
        return True
