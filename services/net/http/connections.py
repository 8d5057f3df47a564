"""The open HTTP connections of some listeners: how many there may be, and how long each may do nothing."""

import asyncio
from typing import Literal, Protocol

import msgspec

from services.net.sockets import IsShared, PeerCounts, file_shares, hard_file_limit, is_loopback
from services.process.clock import Clock
from services.process.metrics import HTTP_CLOSED, HTTP_CONNECTIONS, HTTP_REFUSED

# The limits of HTTP connections.

_SHARE_OF_ONE_ADDRESS = 4
_MAX_PAGES = 256


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of HTTP connections; durations in milliseconds.

    `connections` may be open in all, `per_address` from one address. `head_bytes` and `headers` bound the request line
    and the headers, together with any trailers; `pipelined` the requests that wait for the answer to an earlier one.
    `head_ms` is the time for a whole head, `idle_ms` the time between two requests, and `closing_ms` the time for
    the end of a connection. `half_closed_ms` is the time for the answers to a client that has ended its sending
    direction. While an answer waits to be sent, the client must read `write_bytes` in `write_ms`.
    `spare_files` are kept open for the case that the process has no other file for a new connection.
    """

    connections: int = 1024
    per_address: int = 256
    head_bytes: int = 16 * 1024
    headers: int = 100
    pipelined: int = 100
    head_ms: int = 8_000
    idle_ms: int = 75_000
    write_ms: int = 20_000
    write_bytes: int = 32 * 1024
    closing_ms: int = 3_000
    half_closed_ms: int = 30_000
    spare_files: int = 0


OPERATIONS_LIMITS = HttpLimits(connections=64, per_address=16, spare_files=4)
"""The operations endpoint has connections of its own, which app servers and devices cannot take."""


def pages_limits(open_files: int) -> HttpLimits:
    """Return the limits where the console serves pages to browsers, each of which keeps several connections.

    They take at most half of the open files that are reserved for the process itself.
    """
    connections = max(OPERATIONS_LIMITS.connections, min(_MAX_PAGES, file_shares(open_files).reserved // 2))
    return HttpLimits(connections=connections, per_address=connections // 2, spare_files=OPERATIONS_LIMITS.spare_files)


def api_limits(most: int | None, most_per_address: int | None) -> HttpLimits:
    """Return the limits of app servers' connections: as set, or else as the limit of open files allows."""
    connections = file_shares(hard_file_limit(), most).http
    per_address = most_per_address or max(1, connections // _SHARE_OF_ONE_ADDRESS)
    return HttpLimits(connections=connections, per_address=per_address)


_SWEEP_MS = 1000
_CHUNK = 256
_SETTING = "CARILLON_HTTP_CONNECTIONS_PER_ADDRESS"

Refusal = Literal["address", "full"]


class HttpConnection(Protocol):
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
        self.open: dict[HttpConnection, str] = {}
        self._waiting: dict[HttpConnection, None] = {}
        self._gauge = HTTP_CONNECTIONS.labels(name)
        self.name = name

    def __len__(self) -> int:
        return len(self.open)

    def add(self, connection: HttpConnection, address: str) -> Refusal | None:
        """Count a new connection, which waits for its first request; or return why it is refused."""
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

    def remove(self, connection: HttpConnection) -> None:
        """Stop counting a closed connection."""
        self._waiting.pop(connection, None)
        peer = self.open.pop(connection, None)
        if peer is not None:
            self._peers.release(peer)
            self._gauge.set(len(self.open))

    def set_waiting(self, connection: HttpConnection) -> None:
        if connection in self.open:
            self._waiting[connection] = None

    def set_busy(self, connection: HttpConnection) -> None:
        """Note that a request of this connection is in progress."""
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
