"""Replays: a role's state built again from the log, to replace the live one or to be compared with it."""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from services.runtime.log.port import Log, Partition


class Fold(Protocol):
    """A part of a state, and the partitions that fold into it. A Follower is one."""

    @property
    def sources(self) -> frozenset[Partition]: ...

    async def offsets(self) -> dict[Partition, int]:
        """The next offset of each partition that the part has seen."""
        ...

    async def apply_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Fold up to the ends and no further; tells with each batch by how many offsets it went on.

        ConflictError: the part has seen more than the log holds.
        """
        ...


class State(Protocol):
    """A role's state on disk, opened to be folded forward. Nothing is decided and nothing sent."""

    @property
    def followers(self) -> Sequence[Fold]: ...

    def digest(self) -> str:
        """A hash over the whole state but its offsets."""
        ...

    def close(self) -> None:
        """Make what was folded durable."""
        ...


_SQLITE = b"SQLite format 3\x00"
OpenState = Callable[[Path, Log], State]
"""Opens the state in a directory (empty: nothing folded yet)."""


class ReplayComparison(NamedTuple):
    """Digests of the live state and of the one rebuilt, both folded to the same ends of the log."""

    live: str
    rebuilt: str

    @property
    def equal(self) -> bool:
        return self.live == self.rebuilt


async def rebuild(
    open_state: OpenState,
    directory: Path,
    log: Log,
    ends: Mapping[Partition, int],
    on_batch: Callable[[int], None],
    on_total: Callable[[int], None] = lambda total: None,
) -> str:
    """Build the state anew and put it in the directory's place; returns its digest. The role must not be running.

    Tells first how many offsets it has to go over, and then with each batch by how many it went on.
    """
    with tempfile.TemporaryDirectory(dir=parent_of(directory)) as work:
        fresh = Path(work) / "state"
        digest = await _folded(open_state, fresh, log, ends, on_batch, on_total)
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)
    return digest


async def verify(
    open_state: OpenState,
    directory: Path,
    log: Log,
    ends: Mapping[Partition, int],
    on_batch: Callable[[int], None],
    on_total: Callable[[int], None] = lambda total: None,
) -> ReplayComparison:
    """Compare a copy of the live state, folded to the ends, with one built from nothing.

    The role may be running: where it is past the ends, both are folded as far as it is. A compacted topic that
    grows meanwhile can still make them differ; then compare again.
    """
    with tempfile.TemporaryDirectory(dir=parent_of(directory)) as work:
        copy, fresh = Path(work) / "copy", Path(work) / "fresh"
        copy_state(directory, copy)
        ends = await _furthest(open_state, copy, log, ends)
        live = await _folded(open_state, copy, log, ends, lambda count: None)
        return ReplayComparison(live, await _folded(open_state, fresh, log, ends, on_batch, on_total))


def to_fold(ends: Mapping[Partition, int], folded: Iterable[Partition], offsets: Mapping[Partition, int]) -> int:
    """How many offsets lie between a state and the ends."""
    return sum(max(0, ends.get(partition, 0) - offsets.get(partition, 0)) for partition in folded)


def copy_state(source: Path, target: Path) -> None:
    """Copy a state's files, each SQLite file as of one moment, also while its role is writing; none are none."""
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()) if source.exists() else ():
        if path.is_dir():
            copy_state(path, target / path.name)
        elif not path.name.endswith(("-wal", "-shm", "-journal", ".new")):
            _copy_file(path, target / path.name)


def _copy_file(path: Path, target: Path) -> None:
    with path.open("rb") as file:
        is_sqlite = file.read(len(_SQLITE)) == _SQLITE
    if not is_sqlite:
        shutil.copy2(path, target)
        return
    with closing(sqlite3.connect(path, timeout=10)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


async def _furthest(
    open_state: OpenState, directory: Path, log: Log, ends: Mapping[Partition, int]
) -> dict[Partition, int]:
    furthest = dict(ends)
    with _opened(open_state, directory, log) as state:
        for follower in state.followers:
            for partition, next_offset in (await follower.offsets()).items():
                furthest[partition] = max(furthest.get(partition, 0), next_offset)
    return furthest


async def _folded(
    open_state: OpenState,
    directory: Path,
    log: Log,
    ends: Mapping[Partition, int],
    on_batch: Callable[[int], None],
    on_total: Callable[[int], None] = lambda total: None,
) -> str:
    with _opened(open_state, directory, log) as state:
        on_total(sum([to_fold(ends, follower.sources, await follower.offsets()) for follower in state.followers]))
        for follower in state.followers:
            await follower.apply_until(ends, on_batch)
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
    """The directory's parent, made where there is none: what is built there can be moved into place."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    return directory.parent
