"""Who is connected to this gateway, and under which connection id."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

Link = TypeVar("Link")


class Session(msgspec.Struct, frozen=True, gc=False):
    """One device on one connection. `connection` is unique over all gateways and time."""

    connection: int
    appkey: str
    token: str
    partition: int
    number: int


class Connections(Generic[Link]):
    """The links of the devices that were welcomed, by connection id and by device; one for each device."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self._sessions: dict[int, Session] = {}
        self._by_app: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._links)

    def admit(self, session: Session, link: Link) -> Link | None:
        """Add a connection. The device's older one, if it has one, stays known until it leaves, and is returned."""
        tokens = self._by_app.setdefault(session.appkey, {})
        older = tokens.get(session.token)
        tokens[session.token] = session.connection
        self._links[session.connection] = link
        self._sessions[session.connection] = session
        return self._links.get(older) if older is not None else None

    def leave(self, session: Session) -> bool:
        """Remove a connection; False when it was not there."""
        if self._links.pop(session.connection, None) is None:
            return False
        del self._sessions[session.connection]
        tokens = self._by_app[session.appkey]
        if tokens[session.token] == session.connection:
            del tokens[session.token]
        if not tokens:
            del self._by_app[session.appkey]
        return True

    def of_app(self, appkey: str) -> list[Session]:
        """The sessions of the app's devices."""
        return [self._sessions[connection] for connection in self._by_app.get(appkey, {}).values()]

    def find(self, connection: int) -> Link | None:
        return self._links.get(connection)

    def sessions(self, instance: int, instances: int) -> Iterator[Session]:
        """The sessions of the devices whose partition p has p mod instances = instance."""
        return (session for session in self._sessions.values() if session.partition % instances == instance)

    def counts(self) -> dict[str, int]:
        """How many devices of each app are connected."""
        return {appkey: len(tokens) for appkey, tokens in self._by_app.items()}


class ConnectionIds:
    """Ids below 2^63 that grow with time: milliseconds since 1970, 4 bits of counter, 16 bits of this gateway's own.

    A gateway that makes more than 16 in a millisecond runs ahead of the clock, and the clock catches up.
    """

    def __init__(self, salt: int) -> None:
        self._salt = salt & 0xFFFF
        self._tick = 0

    def take(self, now_ms: int) -> int:
        self._tick = max(self._tick + 1, now_ms << 4)
        return self._tick << 16 | self._salt
