"""Process setup that `carillon up`, `serve` and `replay` share: permissions, threads, readiness and errors."""

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from services.errors import CarillonError
from services.process import memory
from services.process.logs import logger

if TYPE_CHECKING:
    from services.net.http.operations import Operations

_NO_ACCESS_FOR_OTHERS = 0o077
_SWITCH_S = 0.0005


def restrict_permissions() -> None:
    """Make files and sockets that this process creates accessible to their owner alone."""
    os.umask(_NO_ACCESS_FOR_OTHERS)


def restrict_state(directory: Path) -> None:
    """Make a state that an earlier version wrote accessible to its owner alone.

    Files of other users stay as they are, as do links. Files that vanish meanwhile are passed over.
    """
    _restrict(directory)
    for folder, subfolders, files in os.walk(directory):
        for name in (*subfolders, *files):
            _restrict(Path(folder, name))


def _restrict(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if mode & _NO_ACCESS_FOR_OTHERS and status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
            path.chmod(mode & ~_NO_ACCESS_FOR_OTHERS)


def shorten_switch_interval() -> None:
    """Let threads that compute in Python give way after 0.5 ms instead of 5.

    The event loop releases the interpreter lock with every wait for the network or the log. To get it back it may wait
    that long each time for a thread that evaluates a filter or reads a batch of the log.
    """
    sys.setswitchinterval(_SWITCH_S)


def set_ready(operations: "Operations") -> None:
    """Report the process as ready on /healthz."""
    memory.freeze_startup_objects()
    operations.set_ready()


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """End the command with the one line of a CarillonError, without a traceback."""
    try:
        yield
    except CarillonError as error:
        raise click.ClickException(str(error)) from None


@contextlib.contextmanager
def logged_errors() -> Iterator[None]:
    """End a process of the service with the one line of a CarillonError: in the log, or as text on a terminal."""
    with plain_errors():
        try:
            yield
        except CarillonError as error:
            if sys.stderr.isatty():
                raise
            logger.critical("the process ends: it cannot start or go on", error=str(error))
            sys.exit(1)
