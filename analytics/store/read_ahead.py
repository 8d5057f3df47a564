"""Has the system read files into its page cache, so that the first random reads of a table do not wait for the disk."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

MOST_BYTES = 512 * 1024 * 1024


def read_ahead(parts: Iterable[Path]) -> None:
    """Have the columns of a table's parts read, up to MOST_BYTES. Returns at once; a part may be gone already.

    Does nothing where the system takes no such advice.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    left = MOST_BYTES
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            for file in sorted(part.glob("*.bin")):
                left -= file.stat().st_size
                if left < 0:
                    return
                _read_file_ahead(file)


def _read_file_ahead(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)
