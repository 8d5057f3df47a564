"""A gRPC server as a service."""

import asyncio

from services.runtime.rpc.server import Server

_GRACE_S = 5


class RpcListener:
    """Runs a gRPC server; calls in flight get five seconds to end when it stops."""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self._server = server

    async def run(self, ready: asyncio.Event) -> None:
        await self._server.start()
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self._server.stop(grace=_GRACE_S)
