"""Replays: a role's state built again from the log, to replace the live one or to be compared with it."""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from services.runtime.follower import Follower
from services.runtime.log import Log, Partition


class State(Protocol):
    """A role's state on disk, opened to be folded forward. Nothing is decided and nothing sent."""

    @property
    def followers(self) -> Sequence[Follower]: ...

    def digest(self) -> str:
        """A hash over the whole state but its offsets."""
        ...

    def close(self) -> None:
        """Make what was folded durable."""
        ...


_SQLITE = b"SQLite format 3\x00"
OpenState = Callable[[Path, Log], State]
"""Opens the state in a directory (empty: nothing folded yet)."""


class Verdict(NamedTuple):
    """Digests of the live state and of the one rebuilt, both folded to the same ends of the log."""

    live: str
    rebuilt: str

    @property
    def equal(self) -> bool:
        return self.live == self.rebuilt


async def rebuild(
    open_state: OpenState, directory: Path, log: Log, ends: Mapping[Partition, int], on_batch: Callable[[int], None]
) -> str:
    """Build the state anew and put it in the directory's place; returns its digest. The role must not be running."""
    with tempfile.TemporaryDirectory(dir=_parent(directory)) as work:
        fresh = Path(work) / "state"
        digest = await _folded(open_state, fresh, log, ends, on_batch)
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)
    return digest


async def verify(
    open_state: OpenState, directory: Path, log: Log, ends: Mapping[Partition, int], on_batch: Callable[[int], None]
) -> Verdict:
    """Compare a copy of the live state, folded to the ends, with one built from nothing.

    The role may be running: where it is past the ends, both are folded as far as it is. A compacted topic that
    grows meanwhile can still make them differ; then compare again.
    """
    with tempfile.TemporaryDirectory(dir=_parent(directory)) as work:
        copy, fresh = Path(work) / "copy", Path(work) / "fresh"
        copy_state(directory, copy)
        ends = await _furthest(open_state, copy, log, ends)
        live = await _folded(open_state, copy, log, ends, lambda count: None)
        return Verdict(live, await _folded(open_state, fresh, log, ends, on_batch))


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
    open_state: OpenState, directory: Path, log: Log, ends: Mapping[Partition, int], on_batch: Callable[[int], None]
) -> str:
    with _opened(open_state, directory, log) as state:
        for follower in state.followers:
            await follower.fold_until(ends, on_batch)
        return state.digest()


@contextmanager
def _opened(open_state: OpenState, directory: Path, log: Log) -> Iterator[State]:
    directory.mkdir(parents=True, exist_ok=True)
    state = open_state(directory, log)
    try:
        yield state
    finally:
        state.close()


def _parent(directory: Path) -> Path:
    directory.parent.mkdir(parents=True, exist_ok=True)
    return directory.parent
