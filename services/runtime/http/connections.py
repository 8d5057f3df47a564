"""The open HTTP connections of some listeners: how many there may be, and how long each may do nothing."""

import asyncio
from typing import Literal, Protocol

from services.runtime.http.limits import HttpLimits
from services.runtime.process.clock import Clock
from services.runtime.process.metrics import HTTP_CLOSED, HTTP_CONNECTIONS, HTTP_REFUSED
from services.runtime.sockets.peers import IsShared, PeerCounts, is_loopback

_SWEEP_MS = 1000
_CHUNK = 256
_SETTING = "CARILLON_HTTP_CONNECTIONS_PER_ADDRESS"

Refusal = Literal["address", "full"]


class Connection(Protocol):
    """One connection as its group sees it."""

    def end_if_overdue(self, now_ms: int) -> None:
        """End the connection if a deadline has passed."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class HttpConnections:
    """The open connections of one or several listeners, within the limits. Shared addresses have no limit of their own.

    A connection waits while no request of it is in progress. When the group is full, the one that has waited longest is
    closed for a new one, so that silent and idle clients do not exclude others.
    """

    def __init__(self, name: str, limits: HttpLimits, clock: Clock, is_shared: IsShared = is_loopback) -> None:
        self.limits = limits
        self.now_ms = clock.now_ms
        self._clock = clock
        self._peers = PeerCounts(limits.per_address, is_shared, _SETTING)
        self.open: dict[Connection, str] = {}
        self._waiting: dict[Connection, None] = {}
        self._gauge = HTTP_CONNECTIONS.labels(name)
        self.name = name

    def __len__(self) -> int:
        return len(self.open)

    def add(self, connection: Connection, address: str) -> Refusal | None:
        """Count a new connection, which waits; or return why there is no place for it."""
        peer = self._peers.take(address)
        if peer is None:
            return self._refuse("address")
        if len(self.open) >= self.limits.connections and not self._end_longest_waiting():
            self._peers.release(peer)
            return self._refuse("full")
        self.open[connection] = peer
        self._waiting[connection] = None
        self._gauge.set(len(self.open))
        return None

    def remove(self, connection: Connection) -> None:
        """Count a closed connection no more."""
        self._waiting.pop(connection, None)
        peer = self.open.pop(connection, None)
        if peer is not None:
            self._peers.release(peer)
            self._gauge.set(len(self.open))

    def set_waiting(self, connection: Connection) -> None:
        if connection in self.open:
            self._waiting[connection] = None

    def set_busy(self, connection: Connection) -> None:
        """A request of this connection is in progress."""
        self._waiting.pop(connection, None)

    def count_closed(self, reason: str) -> None:
        """Count a connection that the service ended."""
        HTTP_CLOSED.labels(self.name, reason).inc()

    async def sweep(self) -> None:
        """Check the deadlines of all connections once a second."""
        while True:
            await self._clock.sleep_until(self.now_ms() + _SWEEP_MS)
            for index, connection in enumerate(list(self.open)):
                if index % _CHUNK == _CHUNK - 1:
                    await asyncio.sleep(0)
                connection.end_if_overdue(self.now_ms())

    def _end_longest_waiting(self) -> bool:
        connection = next(iter(self._waiting), None)
        if connection is None:
            return False
        self.remove(connection)
        connection.abort()
        self.count_closed("full")
        return True

    def _refuse(self, reason: Refusal) -> Refusal:
        HTTP_REFUSED.labels(self.name, reason).inc()
        return reason
