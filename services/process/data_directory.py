"""The lock of a data directory: one running process at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from services.errors import CarillonError, ConflictError

RUNNING_LOCK = "running.lock"
"""Lock file of a role's state directory: locked while the role's own process runs on it, or it is rebuilt."""


@contextmanager
def lock_directory(directory: Path, name: str = "carillon.lock") -> Iterator[None]:
    """Lock the directory while the block runs. ConflictError: another process has locked it.

    The lock ends with its process, also when that is killed. CarillonError: the directory cannot be made or written.
    """
    with _opened(directory, name) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another carillon process uses {directory}; stop it, or set CARILLON_DATA_DIR to another directory"
            ) from None
        yield


def _opened(directory: Path, name: str) -> IO[bytes]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return (directory / name).open("ab")
    except OSError as error:
        raise CarillonError(f"{directory} cannot be written: {error.strerror}; see CARILLON_DATA_DIR") from None
