"""What `carillon up`, `serve` and `replay` share."""

import contextlib
import os
from collections.abc import Iterator

import click

from services.runtime.errors import CarillonError
from services.runtime.http.operations import Operations
from services.runtime.process import garbage_collection

_NO_ACCESS_FOR_OTHERS = 0o077


def restrict_permissions() -> None:
    """Make files and sockets that this process creates accessible to their owner alone."""
    os.umask(_NO_ACCESS_FOR_OTHERS)


def set_ready(operations: Operations) -> None:
    """Report the process as ready on /healthz."""
    garbage_collection.freeze_startup_objects()
    operations.set_ready()


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """End the command with the one line of a CarillonError, without a traceback."""
    try:
        yield
    except CarillonError as error:
        raise click.ClickException(str(error)) from None
