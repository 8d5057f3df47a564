"""The connections of this gateway: all open ones, and those of welcomed devices by connection id and by device."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

import msgspec

AnyConnection = TypeVar("AnyConnection")


class DeviceSession(msgspec.Struct, frozen=True, gc=False):
    """A welcomed device on one connection.

    `connection` is an id, unique over all gateways and time; a device's later connection has a greater one.
    """

    connection: int
    appkey: str
    token: str
    partition: int
    number: int


class OpenConnections(Generic[AnyConnection]):
    """Every open WebSocket connection, welcomed or not, and the tasks that handle requests of their devices."""

    def __init__(self, ids: "ConnectionIds", now_ms: Callable[[], int]) -> None:
        self._ids = ids
        self._now_ms = now_ms
        self._connections: dict[AnyConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: AnyConnection) -> int:
        """Add a connection that has just opened, and return its id.

        Ids follow the order in which connections open, not that of their hellos: the hello of a connection that the
        device has given up may be on its way for longer than that of the next one.
        """
        self._connections[connection] = None
        self._empty.clear()
        return self._ids.take(self._now_ms())

    def discard(self, connection: AnyConnection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def all(self) -> list[AnyConnection]:
        """Return the open connections, the oldest first."""
        return list(self._connections)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_closed(self) -> None:
        """Return once no task runs and no connection is open."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._connections:
            await self._empty.wait()


class ConnectionTable(Generic[AnyConnection]):
    """The connections of welcomed devices, by connection id and by device; the newest one of each device."""

    def __init__(self) -> None:
        self._connections: dict[int, AnyConnection] = {}
        self._sessions: dict[int, DeviceSession] = {}
        self._by_app: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, session: DeviceSession, connection: AnyConnection) -> AnyConnection | None:
        """Add a connection. Return the device's older one, if any, which stays in the table until it is removed."""
        tokens = self._by_app.setdefault(session.appkey, {})
        older = tokens.get(session.token)
        tokens[session.token] = session.connection
        self._connections[session.connection] = connection
        self._sessions[session.connection] = session
        return self._connections.get(older) if older is not None else None

    def newest(self, appkey: str, token: str) -> int:
        """Return the id of the device's newest connection; 0: it has none."""
        return self._by_app.get(appkey, {}).get(token, 0)

    def remove(self, session: DeviceSession) -> bool:
        """Remove a connection; False when it was not in the table."""
        if self._connections.pop(session.connection, None) is None:
            return False
        del self._sessions[session.connection]
        if self.newest(session.appkey, session.token) == session.connection:  # a newer one may have closed before it
            tokens = self._by_app[session.appkey]
            del tokens[session.token]
            if not tokens:
                del self._by_app[session.appkey]
        return True

    def of_app(self, appkey: str) -> list[DeviceSession]:
        """Return the sessions of the app's devices."""
        return [self._sessions[connection] for connection in self._by_app.get(appkey, {}).values()]

    def find(self, connection: int) -> AnyConnection | None:
        return self._connections.get(connection)

    def sessions(self, shard: int, shards: int) -> Iterator[DeviceSession]:
        """Yield the sessions of the devices whose partition p has p mod shards = shard."""
        return (session for session in self._sessions.values() if session.partition % shards == shard)

    def counts(self) -> dict[str, int]:
        """Return the number of connected devices of each app."""
        return {appkey: len(tokens) for appkey, tokens in self._by_app.items()}


class ConnectionIds:
    """Ids below 2^63 that grow with time: milliseconds since 1970, 4 bits of counter, 16 bits of this gateway's own.

    A gateway that makes more than 16 ids in a millisecond runs ahead of the clock until the clock has caught up.
    """

    def __init__(self, salt: int) -> None:
        self._salt = salt & 0xFFFF
        self._tick = 0

    def take(self, now_ms: int) -> int:
        self._tick = max(self._tick + 1, now_ms << 4)
        return self._tick << 16 | self._salt
