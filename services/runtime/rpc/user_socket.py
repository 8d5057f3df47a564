"""A Unix socket in front of a gRPC server; it names to the server the user at the other end of each connection.

gRPC for Python shows neither a connection's file descriptor nor its peer's credentials. This socket asks the kernel for
them, and relays each connection to the server from an address of its own, by which the server finds the user's name.
"""

import asyncio
import contextlib
import itertools
import os
import pwd
import shutil
import socket
import struct
import tempfile
from pathlib import Path

_CHUNK_BYTES = 64 * 1024
_CREDENTIALS = struct.Struct("3i")


class UserSocket:
    """Service that accepts connections at `path`; the server listens at `inner`, in a directory of the process's user.

    `users` holds the names of the connected users by the addresses that the server sees.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.users: dict[str, str] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="carillon-"))
        self.inner = self._directory / "calls"
        self._path = path
        self._numbers = itertools.count()

    async def run(self, ready: asyncio.Event) -> None:
        server = await asyncio.start_unix_server(self._accepted, str(self._path))
        self._path.chmod(0o600)
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the directory of `inner`, after the server has stopped."""
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str(self._directory / f"user-{next(self._numbers)}")
        self.users[address] = _user(writer.get_extra_info("socket"))
        try:
            server_reader, server_writer = await self._connect(address)
            await asyncio.gather(_relay(reader, server_writer), _relay(server_reader, writer))
        except OSError:
            writer.close()
        finally:
            self._forget(address)

    def _forget(self, address: str) -> None:
        del self.users[address]
        Path(address).unlink(missing_ok=True)

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        connection.bind(address)
        await asyncio.get_running_loop().sock_connect(connection, str(self.inner))
        return await asyncio.open_unix_connection(sock=connection)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one side ends."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


def _user(connection: socket.socket) -> str:
    """Return the name of the user at the other end, as the kernel knows it, and the host."""
    size = _CREDENTIALS.size
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    return f"{name}@{os.uname().nodename}"
