"""Durability of files and directories."""

import os
from pathlib import Path


def make_durable(path: Path) -> None:
    """Make a file's content durable, or the names of the files in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
