"""An HTTP client with as little work of its own as possible."""

import asyncio
import json
from typing import Any


class Requests:
    """A few persistent HTTP connections with minimal client overhead."""

    def __init__(self, port: int, connections: int = 32) -> None:
        self._port = port
        self._connections = connections
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def open(self) -> None:
        for _ in range(self._connections):
            self._free.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))

    async def post(self, path: str, body: bytes) -> Any:
        reader, writer = await self._free.get()
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        headers = await reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        self._free.put_nowait((reader, writer))
        return answer
