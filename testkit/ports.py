"""Free ports of 127.0.0.1 for servers that start a moment later."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

_FIRST = 10_000
_END = 32_768
"""The system gives ports from here on to outgoing connections, which could take one before a server starts."""


def free_ports(count: int) -> list[int]:
    """Return different ports on which nothing listens now, and that no other caller on this machine got lately."""
    ports: list[int] = []
    with Path(tempfile.gettempdir(), f"carillon-next-port-{os.getuid()}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        port = int(file.read() or _FIRST)
        while len(ports) < count:
            if _is_free(port):
                ports.append(port)
            port = port + 1 if port + 1 < _END else _FIRST
        file.truncate(0)
        file.write(str(port))
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as each:
        try:
            each.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
