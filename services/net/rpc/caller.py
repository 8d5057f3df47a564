"""The caller's identity, which the connection proves: a certificate's role, or the user behind a Unix socket."""

import asyncio
import contextlib
import itertools
import os
import pwd
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from services.errors import PermissionDeniedError

ROLE_URI = "carillon://role/"
"""A certificate names its role in the URI `carillon://role/ROLE` among its subject's alternative names."""

OPERATOR = "operator"
"""The role of certificates for people who run the operators' commands."""

FRONT_END = "console"
"""The interface of origins whose actor is an account that the front end has authenticated."""

Permissions = Mapping[str, frozenset[str]]
"""The roles that may call a method, by the method's full name."""


SHARD_KEY = "carillon-instance"
"""The metadata key of a call for the shard that the caller means to reach; another shard's process refuses it."""


class ShardOfRole(NamedTuple):
    """The share of a role's partitions p with p mod shards = shard."""

    role: str
    shard: int
    shards: int

    @property
    def metadata(self) -> str:
        return f"{self.shard}/{self.shards}"


class CallContext(Protocol):
    """The part of a gRPC call's context that names the caller."""

    def peer(self) -> str: ...

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...

    def auth_context(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class CallerCheck:
    """Refuses calls that the certificate's role may not make, and replaces the given origin by a proven one.

    `permissions`: None where certificates are not demanded; a method without an entry may be called by no role.
    `users`: the names of connected users by the address of their connection, where a `UserSocket` serves them.
    `shard`: the one that the process serves; None where callers do not choose among several.
    `believes_origins`: origins are kept as given, because only a process of the service itself reaches the server.
    """

    permissions: Permissions | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    shard: ShardOfRole | None = None
    believes_origins: bool = False

    def check(self, method: str, context: CallContext) -> None:
        """Check that the caller may make the call.

        PermissionDeniedError: the role in the caller's certificate may not call the method, or the caller takes this
        process for another shard; the text says which.
        """
        if self.shard is not None:
            self._check_shard(self.shard, context)
        if self.permissions is None:
            return
        roles = _roles(context)
        if not roles:
            raise PermissionDeniedError(
                f"the certificate of {_subject(context)} names no role: it needs one URI {ROLE_URI}ROLE among its"
                " subject's alternative names"
            )
        if len(roles) > 1 or roles[0] not in self.permissions.get(method, ()):
            raise PermissionDeniedError(f"{' and '.join(roles)} ({_subject(context)}) may not call {method}")

    @staticmethod
    def _check_shard(own: ShardOfRole, context: CallContext) -> None:
        for key, value in context.invocation_metadata() or ():
            if key == SHARD_KEY and value != own.metadata:
                raise PermissionDeniedError(
                    f"the caller takes this for shard {str(value).replace('/', ' of ')} of {own.role}, but it is"
                    f" shard {own.shard} of {own.shards}: CARILLON_{own.role.upper()}_ADDR must be the same list for"
                    " all roles, with one address for each of CARILLON_SHARDS instances, in their order"
                )

    def attest(self, request: Any, context: CallContext) -> None:
        """Set the address in the request's origin to the proven actor, and keep the given one as the caller's claim.

        A service role with a certificate is believed, because it passes on the origins of its own callers. Without TLS
        so is a front end with accounts, unless it calls by a Unix socket: only roles reach each other then.
        """
        if self.believes_origins or "origin" not in request.DESCRIPTOR.fields_by_name:
            return
        if self.permissions is not None and _roles(context) != [OPERATOR]:
            return
        origin = request.origin
        is_proved = self.permissions is not None or context.peer().startswith("unix:")
        if origin.interface == FRONT_END and not is_proved:
            return
        origin.actor = ""
        actor = self._actor(context)
        origin.says = "" if origin.address == actor else origin.address
        origin.address, origin.interface = actor, "cli"

    def _actor(self, context: CallContext) -> str:
        if self.permissions is not None:
            return _subject(context)
        peer = context.peer()
        kind, _, address = peer.partition(":")
        return self.users.get(address, "a Unix socket") if kind == "unix" else address.rpartition(":")[0]


def _roles(context: CallContext) -> list[str]:
    uris = [uri.decode() for uri in context.auth_context().get("peer_uri", ())]
    return [uri.removeprefix(ROLE_URI) for uri in uris if uri.startswith(ROLE_URI)]


def _subject(context: CallContext) -> str:
    (subject,) = context.auth_context()["x509_subject"]
    return str(subject.decode())


# A Unix socket in front of a gRPC server, which tells the server the user at the other end of each connection.
#
# gRPC for Python shows neither a connection's file descriptor nor its peer's credentials. This socket asks the kernel
# for them, and relays each connection to the server from an address of its own, by which the server finds the user's
# name.

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
    """Return USER@HOST of the process at the other end, as the kernel knows it."""
    size = _CREDENTIALS.size
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    return f"{name}@{os.uname().nodename}"
