"""Sockets of listeners: accepting them, dividing open files among uses, and the share of each address."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address
from typing import TypeAlias

import msgspec

from services.net.http.client_address import ClientAddresses, Networks, read_address
from services.process.logs import logger

RETRY_S = 0.1
"""Pause after accepting has failed, seconds."""

_ACCEPTED_AT_ONCE = 64

OnAccepted = Callable[[socket.socket, str], None]
"""Called with a new socket and the address of its peer without a port; "" for a Unix socket."""


class AcceptLoop:
    """Gives each new socket of a non-blocking listener to `on_accepted`, between `open` and `close`.

    When accepting fails, such as for lack of a free file, the waiting sockets stay in the kernel's queue and the loop
    tries again after a pause; `later(function)` calls the function then. The loop keeps `spare_files` open, and closes
    one of them for each socket that it accepts while the process has no other file.
    """

    def __init__(
        self,
        name: str,
        on_accepted: OnAccepted,
        *,
        spare_files: int = 0,
        later: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._name = name
        self._on_accepted = on_accepted
        self._later = later or (lambda again: asyncio.get_running_loop().call_later(RETRY_S, again))
        self._loop: asyncio.AbstractEventLoop
        self._listener: socket.socket | None = None
        self._is_paused = False
        self._is_suspended = False
        self._max_spare_files = spare_files
        self._spare_files: list[int] = []

    def open(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._open_spare_files()
        self._resume()

    def suspend(self, is_suspended: bool) -> None:
        """Leave new sockets to other processes that accept at the same listener, or accept them again."""
        self._is_suspended = is_suspended
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._resume()

    def close(self) -> None:
        """Stop accepting; the caller closes the listener."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener = None
        while self._spare_files:
            os.close(self._spare_files.pop())

    def _accept(self) -> None:
        """Accept some of the waiting sockets, then let the event loop do other work."""
        assert self._listener is not None
        self._open_spare_files()
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._spare_files:
                    self._pause(self._listener, error)
                    return
                os.close(self._spare_files.pop())
                continue
            if self._is_paused:
                self._is_paused = False
                logger.info("sockets are accepted again", listener=self._name)
            self._on_accepted(accepted, str(address[0]) if isinstance(address, tuple) else "")
            if self._listener is None or self._is_suspended:
                return

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        if not self._is_paused:
            self._is_paused = True
            logger.error("no socket can be accepted; trying again", listener=self._name, error=str(error))
        self._loop.remove_reader(listener.fileno())
        self._later(self._resume)

    def _open_spare_files(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spare_files) < self._max_spare_files:
                self._spare_files.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _resume(self) -> None:
        if self._listener is not None and not self._is_suspended:
            self._loop.add_reader(self._listener.fileno(), self._accept)


# Divides the limit of open files of a process among its uses, so that no use starves another.

_UNLIMITED_FILES = 2**20
_MAX_RESERVED = 512
_MAX_HTTP = 1024
_MAX_PENDING = 4096


class FileShares(msgspec.Struct, frozen=True):
    """The number of open files that each use may have.

    `reserved`: the log, states, calls between roles and the operations endpoint. `http`: connections of app servers.
    `pending`: devices' sockets that are not welcomed yet, or closing. `devices`: connections of welcomed devices.
    """

    reserved: int
    http: int
    pending: int
    devices: int


def file_shares(open_files: int, http: int | None = None) -> FileShares:
    """Return the shares of a process that may open `open_files` files; `http` replaces that share's default."""
    reserved = min(_MAX_RESERVED, open_files // 8)
    pending = min(_MAX_PENDING, open_files // 4)
    http = min(_MAX_HTTP, open_files // 8) if http is None else http
    return FileShares(reserved, http, pending, max(0, open_files - reserved - pending - http))


def hard_file_limit() -> int:
    """Return how many files the host lets this process open."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _UNLIMITED_FILES if hard == resource.RLIM_INFINITY else hard


def raise_file_limit() -> int:
    """Raise this process's limit of open files to the hard one; return it."""
    files = hard_file_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        logger.info("the limit of open files was raised", was=soft, now=files)
    return files


# Counts open sockets by the network of their peer, so that no address takes more than its share.

_ADDRESSES_KEPT = 4096
_LOOPBACK = Networks.parse(["127.0.0.0/8", "::1"])

IsShared: TypeAlias = Callable[[str], bool]
"""Says whether many clients share an address, such as a proxy's."""


@lru_cache(_ADDRESSES_KEPT)
def is_loopback(address: str) -> bool:
    """Return whether the peer is on this host, where a proxy in front of the service may run."""
    return read_address(address) in _LOOPBACK


def shared_addresses(addresses: ClientAddresses) -> IsShared:
    """Return a function that says whether an address is that of a trusted proxy or of this host."""
    return lambda address: is_loopback(address) or addresses.is_proxy(address)


@lru_cache(_ADDRESSES_KEPT)
def network(address: str, ipv6_bits: int = 64) -> str:
    """Return an IPv4 address itself, and of an IPv6 address its network: one host may use all addresses of a /64."""
    found = read_address(address)
    if found is None or isinstance(found, IPv4Address):
        return str(found or address)
    return found.packed[: ipv6_bits // 8].hex()


class PeerCounts:
    """Counts of one kind of socket by peer network, at most `most` of each; shared addresses are not counted.

    The first refusal is logged with the `setting` that changes the bound.
    """

    def __init__(self, most: int, is_shared: IsShared, setting: str) -> None:
        self.most = most
        self._is_shared = is_shared
        self._setting = setting
        self._has_warned = False
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def take(self, address: str) -> str | None:
        """Count one more socket. Return the text to give to `release`; None: the network has its share already."""
        if not address or self._is_shared(address):
            return ""
        peer = network(address)
        count = self._counts.get(peer, 0)
        if count >= self.most:
            self._warn(address)
            return None
        self._counts[peer] = count + 1
        return peer

    def release(self, peer: str) -> None:
        """Count one socket less of the network that `take` returned."""
        if not peer:
            return
        left = self._counts[peer] - 1
        if left:
            self._counts[peer] = left
        else:
            del self._counts[peer]

    def _warn(self, address: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "an address has all connections that one address may have; raise the bound for a network that shares"
                " one, or exempt a proxy by CARILLON_TRUSTED_PROXIES",
                address=address,
                bound=self.most,
                setting=self._setting,
            )
