"""Has the system read files into its page cache, so that the first random reads of a table do not wait for the disk."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

MOST_BYTES = 512 * 1024 * 1024

_ADVICE_BYTES = 128 * 1024
"""Linux reads at most the read-ahead of the disk for each piece of advice, 128 KiB on most, and forgets the rest."""


def read_ahead(parts: Iterable[Path]) -> None:
    """Have the columns of a table's parts read, up to MOST_BYTES, without waiting for that. Parts may be gone already.

    Does nothing where the system takes no such advice.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    left = MOST_BYTES
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            for file in sorted(part.glob("*.bin")):
                size = file.stat().st_size
                left -= size
                if left < 0:
                    return
                _read_file_ahead(file, size)


def _read_file_ahead(file: Path, size: int) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        for start in range(0, size, _ADVICE_BYTES):
            os.posix_fadvise(descriptor, start, _ADVICE_BYTES, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)
