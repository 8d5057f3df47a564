"""Accepts the devices' sockets up to the capacity, and speaks TLS and the HTTP upgrade to WebSocket with them."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from services.domain.device_protocol.frames import MAX_FRAME_BYTES, SUBPROTOCOL
from services.gateway.connections import ConnectionTable
from services.gateway.rules import Capacity, ConnectionLimits, over_capacity
from services.gateway.websocket.protocol import Listener, WebSocketProtocol, WebSocketSettings
from services.net.sockets import AcceptLoop, IsShared, PeerCounts, is_loopback
from services.process import background
from services.process.logs import logger
from services.process.metrics import REFUSED

PATH = b"/device/v1"
BACKLOG = 4096

_SEND_BUFFER_BYTES = 64 * 1024
_USER_TIMEOUT_MS = 60_000
_SHARE_OF_ONE_ADDRESS = 4
_SETTING = "CARILLON_GATEWAY_CONNECTIONS_PER_ADDRESS"


class Certificate:
    """The gateway's certificate chain and key, from PEM files. `context` serves new TLS handshakes.

    Raises OSError when the files hold no certificate with its key.
    """

    def __init__(self, chain: str, key: str) -> None:
        self._files = (chain, key)
        self._loaded_versions = _file_versions(self._files)
        self.context = _tls_context(chain, key)

    def reload_if_changed(self) -> None:
        """Load the files again when they have changed; keep the old certificate while the new files do not fit."""
        versions = _file_versions(self._files)
        if versions == self._loaded_versions:
            return
        self._loaded_versions = versions
        try:
            self.context = _tls_context(*self._files)
        except OSError as error:
            logger.error("the new certificate cannot be used; the old one stays in use", error=str(error))
        else:
            logger.info("the certificate was renewed")


class Acceptor:
    """Accepts sockets and gives each WebSocket a new listener.

    `sockets` counts all open sockets, whether pending, welcomed or closing; `peers` counts them by address, and
    `pending_peers` those that are not welcomed. `new_listener` gets a function to call at the welcome. Shared addresses
    have no limit per address.
    """

    def __init__(
        self,
        new_listener: Callable[[Callable[[], None]], Listener],
        welcomed: ConnectionTable[Any],
        capacity: Capacity,
        limits: ConnectionLimits,
        certificate: Certificate | None,
        is_shared: IsShared = is_loopback,
    ) -> None:
        per_address = capacity.per_address or max(1, capacity.connections // _SHARE_OF_ONE_ADDRESS)
        self._new_listener = new_listener
        self._welcomed = welcomed
        self._capacity = capacity
        self._limits = limits
        self._endpoint = WebSocketSettings(PATH, SUBPROTOCOL, MAX_FRAME_BYTES, limits.hello_ms / 1000)
        self._certificate = certificate
        self.peers = PeerCounts(per_address, is_shared, _SETTING)
        self.pending_peers = PeerCounts(max(1, capacity.pending // _SHARE_OF_ONE_ADDRESS), is_shared, _SETTING)
        self._accepting = AcceptLoop("gateway", self._accepted)
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._listener: socket.socket
        self.sockets = 0

    def open(self, listener: socket.socket) -> None:
        """Accept the sockets of this non-blocking listener from now on."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._accepting.open(listener)

    def close(self) -> None:
        self._accepting.close()
        self._listener.close()
        for task in self._handshakes:
            task.cancel()

    def _accepted(self, accepted: socket.socket, address: str) -> None:
        if over_capacity(self.sockets, len(self._welcomed), self._capacity):
            self._refuse(accepted, "crowded")
            return
        peer, pending = self.peers.take(address), self.pending_peers.take(address)
        if peer is None or pending is None:
            self.peers.release(peer or "")
            self.pending_peers.release(pending or "")
            self._refuse(accepted, "address")
            return
        self.sockets += 1
        task = background.start("new connection", self._open(accepted, address, _SocketSlot(self, peer, pending)))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _refuse(self, accepted: socket.socket, why: str) -> None:
        accepted.close()
        REFUSED.labels(why).inc()

    async def _open(self, accepted: socket.socket, address: str, slot: "_SocketSlot") -> None:
        options: dict[str, Any] = {}
        if self._certificate is not None:
            options = {
                "ssl": self._certificate.context,
                "ssl_handshake_timeout": self._limits.hello_ms / 1000,
                "ssl_shutdown_timeout": self._limits.goodbye_ms / 1000,
            }
        new_listener = partial(self._new_listener, slot.set_welcomed)
        protocol = WebSocketProtocol(self._endpoint, address, new_listener, slot.leave)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted, **options)
        except OSError as error:
            logger.debug("a TLS handshake failed", error=str(error))
        finally:
            if not protocol.is_made:
                slot.leave()


class _SocketSlot:
    """The slot of one socket in the acceptor's capacity and in the shares of its address."""

    __slots__ = ("_acceptor", "_peer", "_pending")

    def __init__(self, acceptor: Acceptor, peer: str, pending: str) -> None:
        self._acceptor = acceptor
        self._peer = peer
        self._pending = pending

    def set_welcomed(self) -> None:
        """Stop counting the socket as pending."""
        self._acceptor.pending_peers.release(self._pending)
        self._pending = ""

    def leave(self) -> None:
        """Stop counting the closed socket."""
        self.set_welcomed()
        self._acceptor.peers.release(self._peer)
        self._acceptor.sockets -= 1


def listen(host: str, port: int, share_port: bool) -> socket.socket:
    """Return a listening socket whose connections have small kernel buffers and notice a peer that is gone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=share_port)
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    return listener


def _tls_context(chain: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # With a password given, an encrypted key is refused; without, OpenSSL would ask for one at the terminal.
    context.load_cert_chain(chain, key, password="")
    return context


def _file_versions(files: tuple[str, ...]) -> list[tuple[int, ...] | None]:
    return [_file_version(file) for file in files]


def _file_version(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
