"""Accepts the sockets of a listener, and pauses while the process has no file for another one."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable

from services.runtime.process.logs import logger

RETRY_S = 0.1
"""Length of a pause, seconds."""

_ACCEPTED_AT_ONCE = 64

OnAccepted = Callable[[socket.socket, str], None]
"""Called with a new socket and the address of its peer without a port; "" for a Unix socket."""


class AcceptLoop:
    """Gives each new socket of a non-blocking listener to `on_accepted`, between `open` and `close`.

    When accepting fails, such as for lack of a free file, the waiting sockets stay in the kernel's queue and the loop
    tries again after a pause; `later` calls a function after it. The loop keeps `spare_files` open, and closes one of
    them for each socket that it accepts while the process has no other file.
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
        self._max_spare_files = spare_files
        self._spare_files: list[int] = []

    def open(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._open_spare_files()
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more; the caller closes the listener."""
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
            if self._listener is None:
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
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._accept)
