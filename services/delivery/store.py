"""The state, restored from its snapshot file and folded from the log."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from services.delivery.state import serialization
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.runtime.log.identity import check_log_identity
from services.runtime.log.port import Log, Partition, Record, RecordMark, check_offsets, mark_of
from services.runtime.projection.dead_letters import UNUSABLE, DeadLetters
from services.runtime.projection.merge import MergedReader, TimedRecord
from services.runtime.projection.snapshot import SnapshotFile

SNAPSHOT = "delivery.snapshot"
_VERSION = 10

_LEAD_MS = {PUSH_COMMANDS.name: 10_000, PUSHES.name: 5_000}
"""Time by which records of these topics are merged before outcomes that name no cause."""


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

    Causes are folded first: commands before audiences, and those before outcomes. Outcomes of former versions name no
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
        """Apply the log up to the ends; see `apply_until` of replay.Fold."""
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
