"""Hands accepted connections over to another process, which answers their requests.

The first bytes of a connection decide whether it is handed over; this process only peeks at them. The sockets are sent
over a Unix datagram socket, so nothing has to be connected again when the other process has restarted.
"""

import array
import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from services.errors import CarillonError

_PEEKED_BYTES = 64
_WAIT_S = 5.0
_MAX_WAITING = 64
_RETRY_S = 0.005
_MAX_UNSENT = 1_000


class _Unsent(NamedTuple):
    """A connection that waits for space in the other process's socket; at `until_s` of the loop's clock it is kept."""

    accepted: socket.socket
    keep: Callable[[], None]
    until_s: float


class HandOver:
    """Sorts new connections: `is_own` says by the first bytes of a request whether this process answers it.

    A connection without a byte goes to the other process after five seconds, or when too many wait. This process
    answers all while the other one is away, and those that find no space in its socket for `unsent_s` seconds: Linux
    queues only about ten datagrams at a socket.
    """

    def __init__(self, socket_path: Path, is_own: Callable[[bytes], bool], unsent_s: float = 5.0) -> None:
        self._socket_path = str(socket_path)
        self._is_own = is_own
        self._outlet = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._outlet.setblocking(False)
        self._unsent_s = unsent_s
        self._unsent: deque[_Unsent] = deque()
        self._waiting: dict[socket.socket, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}
        self.is_open = False
        """Whether connections are sorted; until then this process answers all."""

    def sort(self, accepted: socket.socket, keep: Callable[[], None]) -> None:
        """Give the connection away, or call `keep`, now or once its first bytes are there."""
        if not self.is_open:
            keep()
            return
        if self._decide(accepted, keep):
            return
        if len(self._waiting) >= _MAX_WAITING:
            self._end_wait(next(iter(self._waiting)))
        loop = asyncio.get_running_loop()
        self._waiting[accepted] = loop.call_later(_WAIT_S, self._end_wait, accepted), keep
        loop.add_reader(accepted.fileno(), partial(self._readable, accepted))

    def close(self) -> None:
        """Close the connections without a request, and give no more away."""
        self.is_open = False
        for accepted in list(self._waiting):
            self._forget(accepted)
            accepted.close()
        while self._unsent:
            self._unsent.popleft().accepted.close()
        self._outlet.close()

    def _readable(self, accepted: socket.socket) -> None:
        keep = self._forget(accepted)
        if not self._decide(accepted, keep):
            self._give(accepted, keep)

    def _end_wait(self, accepted: socket.socket) -> None:
        self._give(accepted, self._forget(accepted))

    def _forget(self, accepted: socket.socket) -> Callable[[], None]:
        timer, keep = self._waiting.pop(accepted)
        timer.cancel()
        asyncio.get_running_loop().remove_reader(accepted.fileno())
        return keep

    def _decide(self, accepted: socket.socket, keep: Callable[[], None]) -> bool:
        """Keep or give the connection by its first bytes. Return False while there is none."""
        try:
            first = accepted.recv(_PEEKED_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            accepted.close()
            return True
        if self._is_own(first):
            keep()
        else:
            self._give(accepted, keep)
        return True

    def _give(self, accepted: socket.socket, keep: Callable[[], None]) -> None:
        """Send the connection to the other process, behind those that wait for space."""
        loop = asyncio.get_running_loop()
        if not self._unsent and self._sent(accepted, keep):
            return
        if len(self._unsent) >= _MAX_UNSENT:
            keep()
            return
        self._unsent.append(_Unsent(accepted, keep, loop.time() + self._unsent_s))
        if len(self._unsent) == 1:
            loop.call_later(_RETRY_S, self._send_again)

    def _send_again(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unsent and self._sent(self._unsent[0].accepted, self._unsent[0].keep):
            self._unsent.popleft()
        while self._unsent and self._unsent[0].until_s <= loop.time():
            self._unsent.popleft().keep()
        if self._unsent:
            loop.call_later(_RETRY_S, self._send_again)

    def _sent(self, accepted: socket.socket, keep: Callable[[], None]) -> bool:
        """Send the connection, or call `keep` if the other process is away. Return False if there is no space now."""
        try:
            # Not `socket.send_fds`, which ignores the address.
            rights = array.array("i", [accepted.fileno()])
            self._outlet.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, self._socket_path)
        except BlockingIOError:
            return False
        except OSError:  # the other process is not there
            keep()
        else:
            accepted.close()
        return True


class HandedSockets:
    """Replaces a listening socket: `accept` returns a connection that another process has given away."""

    family = socket.AF_UNIX

    def __init__(self, socket_path: Path) -> None:
        self._inlet = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        socket_path.unlink(missing_ok=True)
        try:
            self._inlet.bind(str(socket_path))
        except OSError as error:
            self._inlet.close()
            raise CarillonError(f"connections cannot be taken at {socket_path}: {error}") from None
        socket_path.chmod(0o600)

    def fileno(self) -> int:
        return self._inlet.fileno()

    def setblocking(self, flag: bool) -> None:
        self._inlet.setblocking(flag)

    def setsockopt(self, *_: int) -> None:
        """Do nothing: the connections have the options of the socket that accepted them."""

    def accept(self) -> tuple[socket.socket, object]:
        """Return a connection and its peer's address. BlockingIOError: none waits; ConnectionError: it has ended."""
        _, files, _, _ = socket.recv_fds(self._inlet, 1, 1)
        if not files:
            raise ConnectionAbortedError("the connection was lost, because this process has too many open files")
        accepted = socket.socket(fileno=files[0])
        try:
            return accepted, accepted.getpeername()
        except OSError as error:
            accepted.close()
            raise ConnectionAbortedError(str(error)) from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._inlet.close()
