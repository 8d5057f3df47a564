"""The data directory belongs to one running service at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.runtime.errors import ConflictError


@contextmanager
def held(directory: Path, name: str = "carillon.lock") -> Iterator[None]:
    """Hold the directory; ConflictError when another process does. A killed process holds nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another carillon process uses {directory}; stop it, or set CARILLON_DATA_DIR to another directory"
            ) from None
        yield
