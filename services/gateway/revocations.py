"""Connected devices whose keys are revoked: they have to go."""

import asyncio

from services.domain.apps import AppDirectory
from services.gateway.connection import Connection
from services.gateway.connections import Connections

_CHUNK = 1000


class Eviction:
    """A service: looks at the connections of an app when keys of it were revoked, and at no other time."""

    name = "gateway-revocations"

    def __init__(self, apps: AppDirectory, connections: Connections[Connection]) -> None:
        self._apps = apps
        self._connections = connections
        self._waiting: set[str] = set()
        self._news = asyncio.Event()
        apps.on_revoked(self._note)

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                await self._evict(self._waiting.pop())

    def _note(self, appkey: str) -> None:
        self._waiting.add(appkey)
        self._news.set()

    async def _evict(self, appkey: str) -> None:
        """In chunks, so that others get their turn; who comes meanwhile was judged by what is known now."""
        for index, session in enumerate(self._connections.of_app(appkey)):
            if index % _CHUNK == _CHUNK - 1:
                await asyncio.sleep(0)
            if self._apps.is_revoked(appkey, session.partition, session.number):
                connection = self._connections.find(session.connection)
                if connection is not None:
                    connection.goodbye("unauthorized")
