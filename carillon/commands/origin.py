"""Who gives a command at this command line, for the record."""

import contextlib
import getpass
import socket

from protos.runtime.v1.log_pb2 import Origin
from services.domain import ids


def here() -> Origin:
    """The user at this host."""
    user = "unknown"
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser()
    return Origin(door="cli", address=f"{user}@{socket.gethostname()}", request_id=ids.event_id().hex())
