"""The end of an archive: records that are too old for their class of data are removed for good.

A state that is built anew needs what these records said. So the archive gets a copy of each role's state now and then,
a *base*, and a segment is removed once a base that is old enough has applied all its records, of every role. A rebuilt
state begins with the oldest base from which the archive and the log go on without a gap.
"""

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from services.errors import ConflictError, UnavailableError
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.store import ArchiveBegin, date_of
from services.log.port import Log, Partition
from services.log.topics import Topics
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import ARCHIVE_FAILURES, ARCHIVE_REMOVED
from services.replica.replay import SQLITE_SUFFIXES
from services.replica.state_copies import StateCopies

DAY_MS = 86_400_000
EVERY_MS = 3_600_000
BASES = 4
"""Bases that are saved in the shortest time for which records are kept."""

_OFFSETS = ".offsets.json"
Offsets = Mapping[Partition, int]


class Base(NamedTuple):
    """A copy of a state in the archive. `offsets`: for each archived partition, the offset before which no record is
    needed by what begins with the copy.
    """

    saved_ms: int
    offsets: Offsets


class StateBases:
    """The bases of one role's state. Calls block, so they are made in a thread; UnavailableError: the disk fails.

    A base is a file of the archive, and one with its offsets, which is written last.
    """

    def __init__(
        self, archive: ArchiveDirectory, role: str, directory: Path, topics: Topics, log_identity: str
    ) -> None:
        self._archive = archive
        self._role = role
        self._directory = directory
        self._topics = topics
        self._log_identity = log_identity
        self._name = re.compile(rf"{re.escape(role)}\.base-([0-9]+){re.escape(_OFFSETS)}")

    def all(self) -> list[Base]:
        """Return the bases, the oldest first; of old ones only the offsets are left."""
        found = (self._name.fullmatch(name) for name in self._archive.file_names())
        return sorted(self._read(int(each[1])) for each in found if each)

    def save(self, now_ms: int, ends: Offsets) -> None:
        """Save a base of the state as it is now. `ends`: those of all archived partitions, from before this call."""
        found: dict[Partition, int] = {}
        copies = StateCopies(self._archive, self._directory, self._log_identity, self._file(now_ms))
        copies.save(lambda copy: found.update(stored_offsets_in(copy)))
        offsets = {
            partition: found.get(partition, 0) if self._role in self._topics[partition.topic].read_by else end
            for partition, end in ends.items()
        }
        self._archive.put_bytes(
            f"{self._role}.base-{now_ms}{_OFFSETS}",
            json.dumps([[*partition, offset] for partition, offset in sorted(offsets.items())]).encode(),
        )

    def first_after(self, begin: ArchiveBegin) -> Base:
        """Return the oldest base that needs no record which has left the archive. ConflictError: there is none."""
        files = set(self._archive.file_names())
        for base in self.all():
            if self._file(base.saved_ms) in files and all(
                offset <= base.offsets.get(partition, 0) for partition, offset in begin.offsets.items()
            ):
                return base
        raise ConflictError(
            f"the archive {self._archive.location} has lost records from before {date_of(begin.removed_before_ms)},"
            f" which were too old to be kept, and it has no copy of the state of {self._role} from then on: put its"
            " folder states back from a backup"
        )

    def unpack(self, base: Base, directory: Path) -> None:
        """Fill an empty directory with the state. ConflictError: the base is damaged, or of another log."""
        directory.mkdir(parents=True, exist_ok=True)
        copies = StateCopies(self._archive, directory, self._log_identity, self._file(base.saved_ms))
        if not copies.take():
            raise ConflictError(f"the copy of a state {copies.location} cannot be used: put one from a backup there")

    def remove_copies_before(self, saved_ms: int) -> None:
        """Remove the copies of bases that were saved before this time; their offsets stay."""
        files = set(self._archive.file_names())
        for base in self.all():
            if base.saved_ms < saved_ms and self._file(base.saved_ms) in files:
                self._archive.remove_file(self._file(base.saved_ms))

    def forget_before(self, saved_ms: int) -> None:
        """Remove the offsets of the bases from before the latest one that is as old as this time."""
        for base in [each for each in self.all() if each.saved_ms <= saved_ms][:-1]:
            self._archive.remove_file(self._file(base.saved_ms))
            self._archive.remove_file(f"{self._role}.base-{base.saved_ms}{_OFFSETS}")

    def _file(self, saved_ms: int) -> str:
        return f"{self._role}.base-{saved_ms}.tar.gz"

    def _read(self, saved_ms: int) -> Base:
        read = json.loads(self._archive.read_file(f"{self._role}.base-{saved_ms}{_OFFSETS}"))
        return Base(saved_ms, {Partition(topic, number): offset for topic, number, offset in read})


def stored_offsets_in(directory: Path) -> dict[Partition, int]:
    """Return the least next offset of each partition in the files of a state, each of which has offsets of its own."""
    found: dict[Partition, int] = {}
    for path in directory.rglob("*"):
        if path.suffix not in SQLITE_SUFFIXES:
            continue
        with closing(sqlite3.connect(path)) as rows:
            if not rows.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'offsets'").fetchone():
                continue
            for topic, number, offset in rows.execute("SELECT topic, partition, next FROM offsets"):
                partition = Partition(topic, number)
                found[partition] = min(offset, found.get(partition, offset))
    return found


class ArchiveEnd:
    """Service that saves bases, and removes from the archive what is too old. It starts after all roles.

    `days`: for how many days each topic is kept; topics that are not named are kept for ever, and it has one at least.
    `needed` returns the offsets from which on other readers still need the archive.
    """

    name = "archive's end"

    def __init__(
        self,
        archive: ArchiveDirectory,
        log: Log,
        clock: Clock,
        partitions: Sequence[Partition],
        bases: Sequence[StateBases],
        days: Mapping[str, int],
        needed: Callable[[], Iterable[Offsets]] = tuple,
    ) -> None:
        self._archive = archive
        self._log = log
        self._clock = clock
        self._partitions = partitions
        self._bases = bases
        self._kept_ms = {topic: kept * DAY_MS for topic, kept in days.items()}
        self._needed = needed

    async def run(self, ready: asyncio.Event) -> None:
        """Look at once, and again every hour. Where the archive fails, the process goes on."""
        ready.set()
        while True:
            try:
                await self.remove_old()
            except (ConflictError, UnavailableError) as error:
                ARCHIVE_FAILURES.inc()
                logger.error("old records stay in the archive; trying again in an hour", error=str(error))
            await self._clock.sleep_until(self._clock.now_ms() + EVERY_MS)

    async def remove_old(self) -> int:
        """Save the bases that are due, then remove what is too old; return the number of removed segments.

        ConflictError: a base is damaged. UnavailableError: the disk does not work.
        """
        ends = await self._log.ends(self._partitions)
        return await asyncio.to_thread(self._remove_old, self._clock.now_ms(), ends)

    def _remove_old(self, now_ms: int, ends: Offsets) -> int:
        due_ms = now_ms - min(self._kept_ms.values()) // BASES
        saved = [bases.all() for bases in self._bases]
        for bases, of_role in zip(self._bases, saved, strict=True):
            if not of_role or of_role[-1].saved_ms <= due_ms:
                bases.save(now_ms, ends)
        begin = self._begin(now_ms, saved)
        if not begin.offsets:
            return 0
        count = self._archive.remove_before(begin)
        for bases in self._bases:
            bases.remove_copies_before(bases.first_after(begin).saved_ms)
            bases.forget_before(now_ms - max(self._kept_ms.values()))
        if count:
            ARCHIVE_REMOVED.inc(count)
            before = date_of(begin.removed_before_ms)
            logger.info("old records were removed from the archive", segments=count, before=before)
        return count

    def _begin(self, now_ms: int, saved: Sequence[Sequence[Base]]) -> ArchiveBegin:
        """Return where the archive begins once the segments are removed that are too old, and that nobody needs."""
        removed_before_ms, former = self._archive.begin()
        offsets = dict(former)
        needed = list(self._needed())
        for topic, kept_ms in self._kept_ms.items():
            old_enough = [[base for base in of_role if base.saved_ms <= now_ms - kept_ms][-1:] for of_role in saved]
            if not all(old_enough):
                continue
            applied = [*(base.offsets for (base,) in old_enough), *needed]
            for partition in self._partitions:
                if partition.topic != topic:
                    continue
                limit = min(each[partition] for each in applied if partition in each)
                ended = [name.end for name in self._archive.names(partition) if name.end <= limit]
                if ended:
                    offsets[partition] = max(*ended, offsets.get(partition, 0))
                    removed_before_ms = max(removed_before_ms, *(base.saved_ms for (base,) in old_enough))
        return ArchiveBegin(removed_before_ms, offsets)
