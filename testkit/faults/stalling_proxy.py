"""A TCP proxy that stops passing data on at a chosen moment, and may go on later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class StallingProxy:
    """Passes data on until `stall` is called; then connections stay open without traffic, as with a hanging process."""

    def __init__(self) -> None:
        self.address = ""
        self._flows = asyncio.Event()
        self._flows.set()
        self._passed = 0
        self._more = asyncio.Condition()
        self._copying: set[asyncio.Task[None]] = set()

    def stall(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        """Pass data on again, first what was received meanwhile."""
        self._flows.set()

    async def passes(self, chunks: int) -> None:
        """Return once `chunks` more pieces of data were received from the server."""
        goal = self._passed + chunks
        async with self._more:
            await self._more.wait_for(lambda: self._passed >= goal)

    async def connected(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter, port: int) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            to_client.close()
            return
        for copying in (self._copy(from_client, to_server, 0), self._copy(from_server, to_client, 1)):
            self._copying.add(asyncio.create_task(copying))

    async def close(self) -> None:
        for task in self._copying:
            task.cancel()
        await asyncio.gather(*self._copying, return_exceptions=True)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, counts: int) -> None:
        try:
            with suppress(ConnectionError):
                while piece := await source.read(65_536):
                    await self._flows.wait()
                    target.write(piece)
                    async with self._more:
                        self._passed += counts
                        self._more.notify_all()
        finally:
            target.close()


@asynccontextmanager
async def stalling_proxy(port: int, at: int = 0) -> AsyncIterator[StallingProxy]:
    """Run a proxy to a port of 127.0.0.1, on the port `at`; 0: on a free one."""
    proxy = StallingProxy()
    server = await asyncio.start_server(lambda reader, writer: proxy.connected(reader, writer, port), "127.0.0.1", at)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        await proxy.close()
        server.close()
