"""A WebSocket client on a bare socket: it can do everything wrong that a client can do wrong."""

import asyncio
import json
import ssl
from typing import Any, NamedTuple, cast

from tests.roles.gateway.scripted import BOUND_S

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
UPGRADE = (
    b"GET /device/v1 HTTP/1.1\r\nHost: gateway\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MASK = bytes([0x5A, 0x00, 0xFF, 0x37])


class Frame(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def code(self) -> int | None:
        """Of a close frame; None when it has none."""
        return int.from_bytes(self.payload[:2], "big") if self.payload else None


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True, size: bytes | None = None
) -> bytes:
    """A client's frame; `size` overrides how its length is written (without the mask bit)."""
    size = size or _size(len(payload))
    first = bytes([fin << 7 | rsv << 4 | opcode, size[0] | masked << 7]) + size[1:]
    if not masked:
        return first + payload
    return first + MASK + bytes(byte ^ MASK[index % 4] for index, byte in enumerate(payload))


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


class RawClient:
    """Bytes out, frames in. Every wait has a bound."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.port = int(writer.get_extra_info("sockname")[1])

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None, *, upgrade: bool = True) -> "RawClient":
        async with asyncio.timeout(BOUND_S):
            client = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
        if upgrade:
            client.send(UPGRADE)
            await client.upgraded()
        return client

    @property
    def tls(self) -> ssl.SSLObject:
        return cast(ssl.SSLObject, self._writer.get_extra_info("ssl_object"))

    async def upgraded(self) -> None:
        async with asyncio.timeout(BOUND_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head

    async def send_slowly(self, sent: bytes) -> None:
        """Each byte in a packet of its own."""
        for byte in sent:
            self.send(bytes([byte]))
            await asyncio.sleep(0)

    def send(self, *sent: bytes) -> None:
        self._writer.write(b"".join(sent))

    def say(self, **said: Any) -> None:
        self.send(frame(TEXT, json.dumps(said).encode()))

    async def next(self) -> Frame:
        """The next frame; the gateway's are whole and not masked."""
        async with asyncio.timeout(BOUND_S):
            first, second = await self._reader.readexactly(2)
            assert (first & 0xF0, second & 0x80) == (0x80, 0)
            size = second
            if second >= 126:
                size = int.from_bytes(await self._reader.readexactly(2 if second == 126 else 8), "big")
            return Frame(first & 0xF, await self._reader.readexactly(size))

    async def hear(self) -> dict[str, Any]:
        """The next text frame's object."""
        heard = await self.next()
        assert heard.opcode == TEXT, heard
        spoken: dict[str, Any] = json.loads(heard.payload)
        return spoken

    async def hello(self, appkey: str, **fields: Any) -> dict[str, Any]:
        self.say(type="hello", appkey=appkey, **fields)
        return await self.hear()

    async def rest(self) -> bytes:
        """Every byte up to the end of the connection."""
        async with asyncio.timeout(BOUND_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def ending(self) -> Frame:
        """The close frame. After it nothing comes but the end of the connection."""
        while (heard := await self.next()).opcode != CLOSE:
            pass
        self.send(frame(CLOSE, heard.payload))
        assert await self.rest() == b""
        return heard

    def leave(self) -> None:
        self._writer.transport.abort()

    def __del__(self) -> None:
        """A client that no test holds any more has gone, and no stop has to wait for it."""
        self.leave()


def _size(length: int) -> bytes:
    if length < 126:
        return bytes([length])
    return bytes([126, *length.to_bytes(2, "big")]) if length < 65536 else bytes([127, *length.to_bytes(8, "big")])
