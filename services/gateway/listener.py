"""The gateway's service: listens for devices, sweeps their connections, and drains them when it stops."""

import asyncio
import contextlib
from random import Random

from services.gateway.acceptor import Acceptor, listen
from services.gateway.connection import DeviceConnection
from services.gateway.connections import OpenConnections
from services.gateway.rules import drained_retry_ms, goodbye_delay_ms
from services.gateway.sweeper import Sweeper
from services.process.clock import Clock

# The drain: says goodbye to all devices when the gateway stops, and spreads their reconnects.

_CHUNK = 256
_GOODBYES_S = 17.0
_CLOSE_S = 3.0


class Drain:
    """Ends all connections within 20 s, with `per_s` goodbyes a second or more if needed. New ones end at once."""

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


class DeviceListener:
    """Service: runs the acceptor and the sweeper until it is cancelled, then the drain.

    `port` is the real port once the service is ready, also when the settings said 0.
    """

    name = "gateway"

    def __init__(
        self, acceptor: Acceptor, sweeper: Sweeper, drain: Drain, *, host: str, port: int, share_port: bool
    ) -> None:
        self.port = port
        self._acceptor = acceptor
        self._sweeper = sweeper
        self._drain = drain
        self._host = host
        self._share_port = share_port

    async def run(self, ready: asyncio.Event) -> None:
        listener = listen(self._host, self.port, self._share_port)
        self.port = listener.getsockname()[1]
        self._acceptor.open(listener)
        sweeping = asyncio.create_task(self._sweeper.run())
        ready.set()
        try:
            await asyncio.wait([sweeping])
            sweeping.result()
        finally:
            await self._drain.run()
            sweeping.cancel()
            self._acceptor.close()
