"""Durability of files and directories."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def make_durable(path: Path) -> None:
    """Make a file's content durable, or the names of the files in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def written_beside(file: Path, content: bytes) -> Iterator[str]:
    """Write a temporary file of mode 600 beside `file`; once the block has renamed or linked it, make that durable."""
    descriptor, fresh = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        yield fresh
        make_durable(file.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
