"""The drain: says goodbye to all devices when the gateway stops, and spreads their reconnects."""

import asyncio
import contextlib
from random import Random

from services.gateway.connection import DeviceConnection
from services.gateway.connections import OpenConnections
from services.gateway.rules import drained_retry_ms, goodbye_delay_ms
from services.runtime.process.clock import Clock

_CHUNK = 256
_GOODBYES_S = 17.0
_CLOSE_S = 3.0


class Drain:
    """Ends all connections with `per_s` goodbyes a second, within 20 s in all. New connections get one at once."""

    def __init__(
        self, open_connections: OpenConnections[DeviceConnection], clock: Clock, random: Random, per_s: int
    ) -> None:
        self._open_connections = open_connections
        self._clock = clock
        self._random = random
        self._per_s = per_s
        self._connections = 0

    @property
    def in_progress(self) -> bool:
        return self._connections > 0

    async def run(self) -> None:
        """Return once all connections have closed; those that are left at the deadline are aborted."""
        self._connections = max(1, len(self._open_connections))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYES_S):
                await self._say_goodbyes()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._open_connections.wait_closed()
        for connection in self._open_connections.all():
            connection.abort("draining")

    def say_goodbye(self, connection: DeviceConnection) -> None:
        retry_after_ms = drained_retry_ms(self._connections, self._per_s, self._random)
        connection.goodbye("draining", retry_after_ms=retry_after_ms)

    async def _say_goodbyes(self) -> None:
        began_ms = self._clock.now_ms()
        for index, connection in enumerate(self._open_connections.all()):
            delay_ms = goodbye_delay_ms(index, self._connections, self._per_s)
            await self._clock.sleep_until(began_ms + delay_ms)
            if index % _CHUNK == 0:
                await asyncio.sleep(0)
            self.say_goodbye(connection)
