"""The gateway's service: listens for devices, sweeps their connections, and drains them when it stops."""

import asyncio

from services.gateway.acceptor import Acceptor, listen
from services.gateway.drain import Drain
from services.gateway.sweeper import Sweeper


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
