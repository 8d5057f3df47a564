"""One end of a connection over the simulated network, and asyncio's transport of bytes on it."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from tests.simulation.kernel.process import Process

ContextOf = Callable[[], Context]
"""Returns a context whose callbacks belong to a process of the service (`Process.context`) or to none (`Context`)."""


class ConnectionEnd:
    """One end of a connection: what it sends arrives at the other end in order and after a delay.

    `context` is that of the process which has this end. `delay_s` returns the time that the next message takes.
    """

    _other: Any

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ContextOf, delay_s: Callable[[], float]) -> None:
        self._loop = loop
        self._context = context
        self._delay_s = delay_s
        self._latest_s = 0.0
        self._arriving: deque[Callable[[], None]] = deque()
        self._is_cut = False
        self._held: list[Callable[[], None]] | None = None

    def join(self, other: "ConnectionEnd") -> None:
        """Connect two ends with each other."""
        self._other, other._other = other, self

    def cut(self) -> None:
        """Lose all that this end sends from now on; the other end is not told."""
        self._is_cut = True

    def hold(self) -> None:
        """Keep what this end sends from now on, until `release`: the other end reads nothing."""
        self._held = self._held or []

    def release(self) -> None:
        """Send what was held."""
        held, self._held = self._held or (), None
        for callback in held:
            self.deliver(callback)

    def deliver(self, callback: Callable[[], None]) -> None:
        """Call the function at the other end, after what was sent before."""
        if self._is_cut:
            return
        if self._held is not None:
            self._held.append(callback)
            return
        self._latest_s = max(self._latest_s, self._loop.time() + self._delay_s())
        self._arriving.append(callback)
        self._loop.call_at(self._latest_s, self._arrive, context=self._other._context())

    def _arrive(self) -> None:
        """Deliver the next of what was sent: of several that arrive at one time the event loop may run any first."""
        self._arriving.popleft()()


class _Encrypted:
    """What TLS would have agreed on; nothing is encrypted."""

    def selected_alpn_protocol(self) -> str:
        return "h2"


class ByteTransport(ConnectionEnd, asyncio.Transport):
    """An asyncio transport of bytes, as TLS over TCP is to a protocol."""

    _other: "ByteTransport"

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ContextOf, delay_s: Callable[[], float]) -> None:
        super().__init__(loop, context, delay_s)
        self._protocol: asyncio.Protocol | None = None
        self._is_closing = self._has_ended = False

    def begin(self, protocol: asyncio.Protocol) -> None:
        """Give what arrives to this protocol from now on."""
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if not self._is_closing:
            other, content = self._other, bytes(data)
            self.deliver(lambda: other.receive(content))

    def receive(self, content: bytes) -> None:
        if self._protocol is not None and not self._has_ended:
            self._protocol.data_received(content)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close the connection; what was written before still arrives."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.end, context=self._context())
            self.deliver(self._other.end)

    abort = close

    def end(self) -> None:
        """Note that the connection has ended, and tell the protocol once."""
        self._is_closing = True
        if not self._has_ended:
            self._has_ended = True
            if self._protocol is not None:
                self._protocol.connection_lost(None)

    def die(self) -> None:
        """End the connection as the kernel does when this end's process is killed: only the other end is told."""
        if not self._has_ended:
            self._is_closing = self._has_ended = True
            self.deliver(self._other.end)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Encrypted() if name == "ssl_object" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the network takes whatever is written."""

    def pause_reading(self) -> None:
        """Do nothing: a protocol asks for this only after `pause_writing`, which is never called."""

    resume_reading = pause_reading


def connected(
    loop: asyncio.AbstractEventLoop,
    process: Process,
    delay_s: Callable[[], float],
    client: asyncio.Protocol,
    server: asyncio.Protocol,
) -> tuple[ByteTransport, ByteTransport]:
    """Connect a process with a server outside of the installation; return both ends, the process's first."""
    near, far = ByteTransport(loop, process.context, delay_s), ByteTransport(loop, Context, delay_s)
    near.join(far)
    process.at_death(near.die)
    loop.call_soon(far.begin, server, context=Context())
    near.begin(client)
    return near, far
