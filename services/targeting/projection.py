"""Targeting's projection: bitmap indexes in memory, folded from `devices` and `sessions`, with snapshots on disk."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from protos.registry.v1.erasures_pb2 import PersonErased
from services.domain.applied_erasures import erasure_of
from services.domain.topics import ERASURES_PARTITION
from services.errors import UnavailableError
from services.log.identity import check_log_identity
from services.log.port import Log, Record
from services.log.topics import owned
from services.process import background
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.process.worker_thread import WorkerThread
from services.replica.dead_letters import DeadLetters
from services.replica.follower import Follower
from services.replica.partition_reader import PartitionReader
from services.replica.tenure import OwnerElection, own_when_elected
from services.targeting.settings import ROLE_NAME, TargetingSettings
from services.targeting.state import TargetingState
from services.targeting.store import PartitionSnapshots

Answer = TypeVar("Answer")


class TargetingProjection:
    """The indexes, their follower and their snapshots.

    As a service it restores the snapshots, follows the log, and saves them every `snapshot_s` seconds and at the end.
    Behind an erased device it saves them at once. No snapshot has the devices erased up to the offset `applied_until`.
    """

    name = ROLE_NAME

    def __init__(
        self,
        settings: TargetingSettings,
        directory: Path,
        log: Log,
        clock: Clock,
        election: OwnerElection | None = None,
    ) -> None:
        check_log_identity(directory, log, ROLE_NAME)
        numbers = owned(settings.partitions, settings.shard, settings.shards)
        self.state = TargetingState(numbers, clock)
        dead_letters = DeadLetters(settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl", ROLE_NAME)
        self.follower = Follower(
            ROLE_NAME,
            log,
            self.state,
            self.state,
            dead_letters,
            applies=self.state.applied_partitions(),
            epochs=self.state.epochs,
            election=election,
        )
        self.followers: Sequence[Follower] = (self.follower,)
        self._snapshots = PartitionSnapshots(directory, self.state)
        self._log = log
        self._clock = clock
        self._election = election
        self._snapshot_s = settings.snapshot_s
        self._ready: asyncio.Event | None = None
        self._erased = asyncio.Event()
        self._erasures: deque[tuple[int, PersonErased]] = deque()
        self._removed_until = self.applied_until = 0

    def restore(self) -> None:
        """Load the snapshots into the state, which must be empty."""
        self._snapshots.restore()

    def digest(self) -> str:
        return self.state.digest()

    def save(self) -> None:
        """Save the snapshots; nothing may be folding."""
        self._snapshots.save()

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def check(self) -> None:
        """Check that queries can be answered.

        UnavailableError: the state has not caught up with the log, or another process answers for the partitions.
        """
        if self._ready is None or not self._ready.is_set():
            raise UnavailableError("targeting is still reading the log, or is stopping; ask again")
        self.follower.tenure.check()

    async def query(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a query on the state between two batches. UnavailableError as for `check`."""
        self.check()
        return await self.follower.query(question, *arguments)

    async def run(self, ready: asyncio.Event) -> None:
        self._ready = ready
        loop = asyncio.get_running_loop()

        def note_erased() -> None:
            loop.call_soon_threadsafe(self._erased.set)

        self.state.on_erased = note_erased
        disk = WorkerThread("targeting-snapshot")
        reading = background.start_endless("targeting erasures", self._read_erasures(ready))
        await self.follower.query(self._snapshots.restore)
        saving = background.start_endless("targeting snapshots", self._save_regularly(disk))
        owning = (
            background.start_endless("targeting ownership", self._own_when_elected(self._election, ready))
            if self._election
            else None
        )
        try:
            await self.follower.run(ready)
        except asyncio.CancelledError:
            self._ready = None
            saving.cancel()
            await disk.call(self._snapshots.save)
            raise
        finally:
            self._ready = None
            reading.cancel()
            if owning:
                owning.cancel()
            saving.cancel()
            disk.shutdown()

    async def _read_erasures(self, caught_up: asyncio.Event) -> None:
        await caught_up.wait()  # a state that is behind has not registered yet what it will remove
        await PartitionReader("targeting erasures", self._log, ERASURES_PARTITION, self._note_erasure).run(
            asyncio.Event()
        )

    def _note_erasure(self, record: Record) -> None:
        if fact := erasure_of(record):
            self._erasures.append((record.offset, fact.erased))
            self._erased.set()

    def _check_erasures(self) -> int:
        """Return the offset up to which the state has no device that is erased."""
        while self._erasures and not self.state.has_any(self._erasures[0][1]):
            offset, _ = self._erasures.popleft()
            self._removed_until = offset + 1
        return self._removed_until

    async def _own_when_elected(self, election: OwnerElection, caught_up: asyncio.Event) -> None:
        await caught_up.wait()
        follower = self.follower
        await own_when_elected(
            ROLE_NAME, self._log, follower.tenure, election, follower.applied, self.state.applied_partitions()
        )

    async def _save_regularly(self, disk: WorkerThread) -> None:
        while True:
            await wait_for_first(self._clock, self._clock.now_ms() + self._snapshot_s * 1000, self._erased)
            self._erased.clear()
            try:
                removed_until = await self.follower.query(self._check_erasures)
                for number in self._snapshots.partitions:
                    if snapshot := await self.follower.query(self._snapshots.capture, number):
                        await disk.call(partial(self._snapshots.write, number, snapshot))
                self.applied_until = removed_until
            except Exception as error:
                logger.error("targeting could not save a snapshot; it tries again later", exc_info=error)
