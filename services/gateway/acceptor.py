"""The devices' entrance: accepts their sockets, as many as there is room for, and speaks HTTP, TLS and WebSocket."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from picows import WSAutoPingStrategy, WSListener, WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from services.domain.device_protocol import MAX_FRAME_BYTES, SUBPROTOCOL
from services.gateway.certificate import Certificate
from services.gateway.decide import Limits
from services.runtime.process.logs import logger
from services.runtime.process.metrics import REFUSED

PATH = b"/device/v1"
BACKLOG = 4096

_ACCEPTED_AT_ONCE = 64
_RETRY_S = 0.1
_SEND_BUFFER_BYTES = 64 * 1024
_READ_BUFFER_BYTES = 2048
_USER_TIMEOUT_MS = 60_000


class Inside(Protocol):
    """Where the entrance leads to."""

    def connection(self) -> WSListener:
        """For a socket that asked for a WebSocket."""
        ...

    def crowded(self, sockets: int) -> bool:
        """With this many sockets open in all, must the next one go at once?"""
        ...


class Acceptor:
    """Not picows' own server, because that one accepts every socket: here those that never say a word are bounded too.

    `sockets` are all that are open: in the handshake, inside, and on their way out.
    """

    def __init__(
        self, listener: socket.socket, inside: Inside, limits: Limits, certificate: Certificate | None
    ) -> None:
        self._listener = listener
        self._inside = inside
        self._limits = limits
        self._certificate = certificate
        self._loop = asyncio.get_running_loop()
        self._logger = _DeviceFaults(logging.getLogger("picows.server"), {})
        self._shaking: set[asyncio.Task[None]] = set()
        self.sockets = 0

    def open(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._shaking:
            task.cancel()

    def _accept(self) -> None:
        """Accept some of those who wait, then let others have their turn."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, ConnectionError, InterruptedError):
                return
            except OSError as error:
                logger.error("a device's socket could not be accepted", error=str(error))
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_RETRY_S, self._reopen)
                return
            if self._inside.crowded(self.sockets):
                accepted.close()
                REFUSED.labels("crowded").inc()
            else:
                self.sockets += 1
                task = self._loop.create_task(self._shake_hands(accepted))
                self._shaking.add(task)
                task.add_done_callback(self._shaking.discard)

    def _reopen(self) -> None:
        if self._listener.fileno() >= 0:
            self.open()

    async def _shake_hands(self, accepted: socket.socket) -> None:
        options: dict[str, Any] = {}
        if self._certificate is not None:
            options = {
                "ssl": self._certificate.context,
                "ssl_handshake_timeout": self._limits.hello_ms / 1000,
                "ssl_shutdown_timeout": self._limits.goodbye_ms / 1000,
            }
        protocol = self._protocol()
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted, **options)
        except OSError as error:
            self._logger.debug("a handshake failed: %s", error)
        finally:
            if not protocol.was_made:
                self._gone()

    def _protocol(self) -> "_TrackedProtocol":
        return _TrackedProtocol(
            self._gone,
            None,  # host and port
            None,  # path
            False,  # is_client_side
            self._upgrade,
            self._logger,
            True,  # disconnect_on_exception
            self._limits.hello_ms / 1000,  # websocket_handshake_timeout
            False,  # enable_auto_ping
            0,  # auto_ping_idle_timeout
            0,  # auto_ping_reply_timeout
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,  # enable_auto_pong
            4 * MAX_FRAME_BYTES,
            None,  # extra_headers
            _READ_BUFFER_BYTES,
        )

    def _gone(self) -> None:
        self.sockets -= 1

    def _upgrade(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener | None:
        if request.path.split(b"?", 1)[0] != PATH:
            return None
        asked = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        extra = {"Sec-WebSocket-Protocol": SUBPROTOCOL} if SUBPROTOCOL in asked else None
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(extra), self._inside.connection())


class _TrackedProtocol(WSProtocol):  # type: ignore[misc]
    """Tells when its socket has gone."""

    __slots__ = ("_gone", "was_made")

    def __init__(self, gone: Callable[[], None], *arguments: object) -> None:
        super().__init__(*arguments)
        self._gone = gone
        self.was_made = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.was_made = True
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
        super().connection_lost(exc)


class _DeviceFaults(logging.LoggerAdapter[logging.Logger]):
    """What a device does wrong is no error of the service; failures inside it still are (`exception`)."""

    def error(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)

    def info(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)


def listen(host: str, port: int, share_port: bool) -> socket.socket:
    """A listening socket whose connections keep little in the kernel and notice a peer that is gone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=share_port)
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    return listener
