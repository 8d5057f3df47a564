"""Mounts a small tmpfs over a state directory, so that a test can fill the disk; only root can mount one."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_MIB = 64
_FILLER = "filler"
_CHUNK = bytes(1 << 20)


def can_mount() -> bool:
    return os.geteuid() == 0


class SmallDisk:
    """The mounted tmpfs, which can be filled and freed."""

    def __init__(self, directory: Path) -> None:
        self._filler = directory / _FILLER

    def fill(self) -> None:
        """Take all bytes that are free."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (len(_CHUNK), 4096, 1):
                with _until_full():
                    while file.write(_CHUNK[:size]) == size:
                        pass

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[SmallDisk]:
    """Mount an empty disk on a new directory; it is gone on exit."""
    directory.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_MIB}m", "tmpfs", str(directory)], check=True)
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextlib.contextmanager
def _until_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
