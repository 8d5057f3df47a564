"""A gRPC server as a service."""

import asyncio

from services.runtime.rpc.server import Server, Streams

_GRACE_S = 5


class RpcListener:
    """Runs a gRPC server; when it stops, calls in flight get five seconds to end, and its `streams` end at once."""

    def __init__(self, name: str, server: Server, streams: Streams | None = None) -> None:
        self.name = name
        self._server = server
        self._streams = streams

    async def run(self, ready: asyncio.Event) -> None:
        await self._server.start()
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            if self._streams is not None:
                self._streams.end()
            await self._server.stop(grace=_GRACE_S)
