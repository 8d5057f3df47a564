"""The state on disk: a snapshot file, restored at the start, and saved every few minutes and at the stop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from services.delivery.event_writer import EventWriter
from services.delivery.state import serialization
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.runtime.errors import UnavailableError
from services.runtime.log.appending import append_until_accepted
from services.runtime.log.identity import check_log_identity
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition, check_offsets
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.retries import retry_until_available
from services.runtime.process.worker_thread import WorkerThread
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.merge import MergedReader, TimedRecord
from services.runtime.projection.snapshot import SnapshotFile

SNAPSHOT = "delivery.snapshot"
_VERSION = 9
_EARLIER = (6, 7, 8)
"""Versions that are read too: without packed pushes, with one dedupe window for all pushes, and without epochs."""

_SLICE_BYTES = 64 * 1024
_BLOB_BYTES = 100
_LEAD_MS = {PUSH_COMMANDS.name: 10_000, PUSHES.name: 5_000}
"""How much earlier than outcomes records of these topics are merged, for outcomes that name no cause."""


class DeliveryStore:
    """The state in a directory, for the role and for replays; opened at its snapshot (see replay.State)."""

    def __init__(self, directory: Path, log: Log, dead_letters: DeadLetters, owned: Sequence[int]) -> None:
        check_log_identity(directory, log, "delivery")
        self.state = DeliveryState(owned)
        self.file = SnapshotFile(directory / SNAPSHOT, _VERSION, also_reads=_EARLIER)
        saved = self.file.load()
        if saved is not None:
            serialization.load(self.state, saved.blobs)
        self._follower = MergedFollower(self.state, log, dead_letters, owned, saved.offsets if saved else {})
        self.followers = [self._follower]

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions of the log that the state is folded from."""
        return self._follower.sources

    def offsets(self) -> dict[Partition, int]:
        return dict(self._follower.reached)

    def digest(self) -> str:
        return serialization.digest(self.state)

    def close(self) -> None:
        """Save a snapshot."""
        self.file.save(self._follower.reached, serialization.dump(self.state))


class MergedFollower:
    """Folds the three topics merged by record time, so that the state stays as small as it was when it was live.

    Causes are folded first: commands before audiences, and those before outcomes. Outcomes of former versions name no
    cause; there the times decide (`_LEAD_MS`).
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
        self.sources = frozenset(
            [Partition(PUSH_COMMANDS.name, 0), *(Partition(t.name, n) for t in (PUSHES, DELIVERIES) for n in owned)]
        )
        self._state = state
        self._log = log
        self._dead_letters = dead_letters

    async def offsets(self) -> dict[Partition, int]:
        return dict(self.reached)

    async def apply_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Apply the log up to the ends; see `apply_until` of replay.Fold."""
        await check_offsets(self._log, "delivery", self.reached)
        merge = MergedReader(
            self._log, self.reached, {partition: ends[partition] for partition in sorted(self.sources)}, _LEAD_MS
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
            except ValueError as error:
                self._dead_letters.add(record, error)
            self.reached[Partition(record.topic, record.partition)] = record.offset + 1


class Snapshots:
    """The first service of the role: restores the state, sets `restored`, and saves snapshots, the last at its stop.

    `restored_offset`: the first offset of push-commands that was not in the log at the start.
    """

    name = "delivery snapshots"

    def __init__(self, store: DeliveryStore, events: EventWriter, log: Log, clock: Clock, every_s: int) -> None:
        self.restored = asyncio.Event()
        self.restored_offset = 0
        self._store = store
        self._events = events
        self._log = log
        self._clock = clock
        self._every_ms = every_s * 1000
        self._disk = WorkerThread("delivery-snapshot")

    async def run(self, ready: asyncio.Event) -> None:
        await self._catch_up()
        await append_until_accepted(self._log, self._events.announcements(), self.name)
        await self._catch_up()
        self._events.begin(self._store.offsets())
        self.restored_offset = self._events.offsets.get(Partition(PUSH_COMMANDS.name, 0), 0)
        self.restored.set()
        ready.set()
        try:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + self._every_ms)
                await self._save_or_log()
        finally:
            await self.save()
            self._disk.shutdown()

    async def _catch_up(self) -> None:
        """Apply what the log holds now. What a former process has written counts up to this one's announcements."""
        ends = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.ends(self._store.partitions), role=self.name
        )
        for follower in self._store.followers:
            await follower.apply_until(ends, lambda count: None)

    async def save(self) -> None:
        """Write a snapshot: the offsets of now, and blobs taken in slices, between which other tasks run.

        It holds no start that the log does not have: a restarted process writes such a start once more.
        """
        offsets, blobs, slice_bytes = dict(self._events.offsets), [], 0
        for key, value in serialization.dump(self._store.state):
            blobs.append((key, value))
            slice_bytes += len(value) + _BLOB_BYTES
            if slice_bytes >= _SLICE_BYTES:
                slice_bytes = 0
                await asyncio.sleep(0)
        await self._events.write_starts()
        await self._disk.call(partial(self._store.file.save, offsets, blobs))

    async def _save_or_log(self) -> None:
        try:
            await self.save()
        except UnavailableError as error:
            logger.error("delivery could not save a snapshot; it tries again later", error=str(error))
