"""Replays: a role's state built again from the log, to replace the live one or to be compared with it."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
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
    """Compare a copy of the live state, folded to the ends, with one built from nothing."""
    with tempfile.TemporaryDirectory(dir=_parent(directory)) as work:
        copy, fresh = Path(work) / "copy", Path(work) / "fresh"
        if directory.exists():
            shutil.copytree(directory, copy)
        live = await _folded(open_state, copy, log, ends, lambda count: None)
        return Verdict(live, await _folded(open_state, fresh, log, ends, on_batch))


async def _folded(
    open_state: OpenState, directory: Path, log: Log, ends: Mapping[Partition, int], on_batch: Callable[[int], None]
) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    state = open_state(directory, log)
    try:
        for follower in state.followers:
            await follower.fold_until(ends, on_batch)
        return state.digest()
    finally:
        state.close()


def _parent(directory: Path) -> Path:
    directory.parent.mkdir(parents=True, exist_ok=True)
    return directory.parent
