"""The origin that commands of this command line carry in the log."""

import contextlib
import getpass
import socket

from protos.runtime.v1.log_pb2 import Origin
from services.domain import ids


def command_origin() -> Origin:
    """Return an origin with the names of the user and the host, which the service keeps as what the client says."""
    user = "unknown"
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser()
    return Origin(interface="cli", address=f"{user}@{socket.gethostname()}", request_id=ids.event_id().hex())
