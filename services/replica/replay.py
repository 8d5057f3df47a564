"""Replays: a role's state is rebuilt from the log, to replace the live state or to be compared with it."""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from services.log.port import Log, Partition


class ReplayableProjection(Protocol):
    """A part of a state that is built from some partitions. A Follower is one."""

    @property
    def sources(self) -> frozenset[Partition]: ...

    async def offsets(self) -> dict[Partition, int]:
        """Return the next offset of each partition that the part has applied."""
        ...

    async def apply_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Apply facts up to the ends and no further; call `on_batch` with the number of offsets of each batch.

        ConflictError: the part has applied more than the log holds.
        """
        ...


class State(Protocol):
    """A role's state on disk, opened for a replay: facts are applied, nothing is decided or sent."""

    @property
    def followers(self) -> Sequence[ReplayableProjection]: ...

    def digest(self) -> str:
        """Return a hash over the whole state except its offsets."""
        ...

    def save(self) -> None:
        """Make the whole state durable."""
        ...

    def close(self) -> None:
        """Close the state without saving it."""
        ...


SQLITE_SUFFIXES = (".sqlite", ".db", ".snapshot")
"""How the names of a state's SQLite files end."""
OpenState = Callable[[Path, Log], State]
"""Opens the state in a directory; an empty directory gives an empty state."""

KeepBesideState = Callable[[Path, Path], None]
"""Called with the directories of the former and the rebuilt state: copies what the log does not hold."""


class ReplayProgress(Protocol):
    """Receives the progress of a replay, in offsets."""

    def begin(self, offsets: int) -> None:
        """Called once, before the first batch, with the number of offsets ahead."""
        ...

    def advance(self, offsets: int) -> None:
        """Called after each batch with the number of offsets passed, those of compacted records included."""
        ...


class UnreportedProgress:
    """A ReplayProgress that reports nothing."""

    def begin(self, offsets: int) -> None:
        """Do nothing."""

    def advance(self, offsets: int) -> None:
        """Do nothing."""


def begin_empty(directory: Path) -> None:
    """Leave the directory empty: the state is built from the log's first records on."""


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """The source of a rebuilt state: a log, up to an offset of each partition; the replay reports to `progress`.

    `begin` puts a former state into an empty directory, where the log has lost its first records for good.
    """

    log: Log
    ends: Mapping[Partition, int]
    progress: ReplayProgress = field(default_factory=UnreportedProgress)
    begin: Callable[[Path], None] = begin_empty


class ReplayComparison(NamedTuple):
    """Digests of the live state and of the rebuilt one, both up to the same ends of the log."""

    live: str
    rebuilt: str

    @property
    def equal(self) -> bool:
        return self.live == self.rebuilt


def keep_nothing(former: Path, rebuilt: Path) -> None:
    """Keep nothing of the former state."""


async def rebuild(
    open_state: OpenState, directory: Path, source: ReplaySource, keep: KeepBesideState = keep_nothing
) -> str:
    """Rebuild the state and replace the directory by it; return its digest. The role must not be running."""
    with tempfile.TemporaryDirectory(dir=parent_of(directory)) as work:
        fresh = Path(work) / "state"
        source.begin(fresh)
        with _opened(open_state, fresh, source.log) as state:
            digest = await _folded(state, source)
            state.save()
        keep(directory, fresh)
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)
    return digest


async def verify(open_state: OpenState, directory: Path, source: ReplaySource) -> ReplayComparison:
    """Compare a copy of the live state, brought up to the ends, with a state rebuilt from the log.

    The role may be running: where it is past the ends, both are brought to its offsets. A compacted topic that
    grows meanwhile can still make the digests differ; then compare again.
    """
    with tempfile.TemporaryDirectory(dir=parent_of(directory)) as work:
        copy, fresh = Path(work) / "copy", Path(work) / "fresh"
        copy_state(directory, copy)
        with _opened(open_state, copy, source.log) as state:
            source = replace(source, ends=await _furthest(state, source.ends))
            live = await _folded(state, replace(source, progress=UnreportedProgress()))
        source.begin(fresh)
        with _opened(open_state, fresh, source.log) as state:
            return ReplayComparison(live, await _folded(state, source))


def to_fold(ends: Mapping[Partition, int], sources: Iterable[Partition], offsets: Mapping[Partition, int]) -> int:
    """Return the number of offsets between a state's `offsets` and the ends, over its sources."""
    return sum(max(0, ends.get(partition, 0) - offsets.get(partition, 0)) for partition in sources)


def copy_state(source: Path, target: Path) -> None:
    """Copy a state's files, each SQLite file as of one moment, also while its role is writing it.

    The role's own process may call this, so only SQLite opens a SQLite file: a process that closes any descriptor of a
    file loses all its POSIX locks on it, and without these another process may delete the write-ahead log in use.
    """
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()) if source.exists() else ():
        if path.is_dir():
            copy_state(path, target / path.name)
        elif not path.name.endswith(("-wal", "-shm", "-journal", ".new")):
            _copy_file(path, target / path.name)


def _copy_file(path: Path, target: Path) -> None:
    if path.suffix not in SQLITE_SUFFIXES:
        shutil.copy2(path, target)
        return
    with closing(sqlite3.connect(path, timeout=10)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


async def _furthest(state: State, ends: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the ends, or the state's offsets where these are further."""
    furthest = dict(ends)
    for follower in state.followers:
        for partition, next_offset in (await follower.offsets()).items():
            furthest[partition] = max(furthest.get(partition, 0), next_offset)
    return furthest


async def _folded(state: State, source: ReplaySource) -> str:
    """Apply the log up to the ends; return the digest of the state."""
    ahead = [to_fold(source.ends, follower.sources, await follower.offsets()) for follower in state.followers]
    source.progress.begin(sum(ahead))
    for follower in state.followers:
        await follower.apply_until(source.ends, source.progress.advance)
    return state.digest()


@contextmanager
def _opened(open_state: OpenState, directory: Path, log: Log) -> Iterator[State]:
    directory.mkdir(parents=True, exist_ok=True)
    state = open_state(directory, log)
    try:
        yield state
    finally:
        state.close()


def parent_of(directory: Path) -> Path:
    """Return the directory's parent, created if missing: a state built there can be renamed into place."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    return directory.parent
