"""An HTTP client with as little work of its own as possible."""

import asyncio
import json
from typing import Any

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Requests:
    """A few persistent HTTP connections with minimal overhead; one that the service has closed is opened again."""

    def __init__(self, port: int, connections: int = 32) -> None:
        self._port = port
        self._connections = connections
        self._free: asyncio.Queue[_Connection] = asyncio.Queue()

    async def open(self) -> None:
        for _ in range(self._connections):
            self._free.put_nowait(await self._connect())

    async def post(self, path: str, body: bytes) -> Any:
        connection = await self._free.get()
        if connection[0].at_eof():
            connection[1].close()
            connection = await self._connect()
        reader, writer = connection
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        headers = await reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        self._free.put_nowait(connection)
        return answer

    async def _connect(self) -> _Connection:
        return await asyncio.open_connection("127.0.0.1", self._port)
