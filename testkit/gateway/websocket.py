"""WebSocket clients for tests: one for frames of the device protocol, and one that sends any bytes on a bare socket."""

import asyncio
import contextlib
import json
import ssl
from typing import Any, NamedTuple, cast

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

BOUND_S = 60.0
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
UPGRADE = (
    b"GET /device/v1 HTTP/1.1\r\nHost: gateway\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MASK = bytes([0x5A, 0x00, 0xFF, 0x37])
INVALID_UTF_8 = [
    b"\xff",
    b"\x80",
    b"\xc0\xaf",  # overlong
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xed\xa0\x80",  # a surrogate
    b"\xf4\x90\x80\x80",  # above U+10FFFF
    b"\xf8\x88\x80\x80\x80",
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce",  # cut short
]


class DeviceClient(WSListener):
    """A device that the test drives frame by frame. Every wait has a bound."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.texts: list[str] = []
        self.pongs: asyncio.Queue[bytes] = asyncio.Queue()
        self.close_code: int | None = None
        self.transport: WSTransport

    @classmethod
    async def connect(
        cls, port: int, headers: dict[str, str] | None = None, path: str = "/device/v1"
    ) -> "DeviceClient":
        url = f"ws://127.0.0.1:{port}{path}"
        transport, client = await ws_connect(cls, url, use_aiofastnet=False, extra_headers=headers)
        assert isinstance(client, DeviceClient)
        client.transport = transport
        return client

    @classmethod
    async def welcomed(cls, port: int, appkey: str) -> "DeviceClient":
        """Return a client that was registered as a new device."""
        client = await cls.connect(port)
        assert (await client.hello(appkey))["type"] == "welcome"
        return client

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            text = frame.get_payload_as_utf8_text()
            self.texts.append(text)
            self.frames.put_nowait(json.loads(text))
        elif frame.msg_type == WSMsgType.PONG:
            self.pongs.put_nowait(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            self.close_code = int(frame.get_close_code().value)
            transport.send_close(frame.get_close_code())
            transport.disconnect()

    def send(self, **frame: Any) -> None:
        self.send_payload(json.dumps(frame).encode())

    def send_payload(self, payload: bytes, kind: WSMsgType = WSMsgType.TEXT, fin: bool = True) -> None:
        self.transport.send(kind, payload, fin)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(BOUND_S):
            return await self.frames.get()

    async def hello(self, appkey: str, **fields: Any) -> dict[str, Any]:
        return await self.request(type="hello", appkey=appkey, **fields)

    async def request(self, **frame: Any) -> dict[str, Any]:
        """Send a frame and return the next one that comes."""
        self.send(**frame)
        return await self.next()

    async def closed(self) -> int | None:
        """Wait until the connection has closed; return the code of the gateway's close frame."""
        async with asyncio.timeout(BOUND_S):
            await self.transport.wait_disconnected()
        return self.close_code

    async def goodbye(self) -> str:
        """Wait until the connection has closed; return the reason of the goodbye, which must be the last frame."""
        await self.closed()
        frame = [await self.next() for _ in range(self.frames.qsize())][-1]
        assert frame["type"] == "goodbye"
        assert isinstance(frame["retry_after_ms"], int)
        return str(frame["reason"])


class Frame(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def code(self) -> int | None:
        """The code of a close frame; None when it has none."""
        return int.from_bytes(self.payload[:2], "big") if self.payload else None


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True, size: bytes | None = None
) -> bytes:
    """Return a client's frame; `size` overrides the encoding of its length (without the mask bit)."""
    size = size or _size(len(payload))
    first = bytes([fin << 7 | rsv << 4 | opcode, size[0] | masked << 7]) + size[1:]
    if not masked:
        return first + payload
    return first + MASK + _masked(payload)


def _masked(payload: bytes) -> bytes:
    """Return the payload with the mask, by one operation on large integers: bytes one by one cost 0.1 s per MB."""
    size = len(payload)
    mask = (MASK * (size // len(MASK) + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


class RawClient:
    """A client that sends bytes and receives frames. Every wait has a bound."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(
        cls, port: int, tls: ssl.SSLContext | None = None, *, upgrade: bool = True, address: str = "127.0.0.1"
    ) -> "RawClient":
        """Connect from this address of the host."""
        async with asyncio.timeout(BOUND_S):
            client = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=(address, 0)))
        if upgrade:
            client.send(UPGRADE)
            await client.upgraded()
        return client

    @classmethod
    async def welcomed(cls, port: int, appkey: str) -> "RawClient":
        """Return a client that was registered as a new device."""
        client = await cls.connect(port)
        assert (await client.hello(appkey))["type"] == "welcome"
        return client

    @property
    def tls(self) -> ssl.SSLObject:
        return cast(ssl.SSLObject, self._writer.get_extra_info("ssl_object"))

    async def upgraded(self) -> None:
        """Wait for the answer to the upgrade request, which must be 101."""
        async with asyncio.timeout(BOUND_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head

    async def send_slowly(self, sent: bytes) -> None:
        """Send each byte in a packet of its own."""
        for byte in sent:
            self.send(bytes([byte]))
            await asyncio.sleep(0)

    @property
    def is_closing(self) -> bool:
        """Whether the connection has ended, or is being ended by this side; sending may raise then."""
        return self._writer.is_closing()

    def send(self, *sent: bytes) -> None:
        self._writer.write(b"".join(sent))

    def send_eof(self) -> None:
        """End the sending side of the connection."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def drain(self) -> None:
        """Wait until the kernel has taken what was sent. ConnectionError: the connection has ended."""
        async with asyncio.timeout(BOUND_S):
            await self._writer.drain()

    def send_json(self, **fields: Any) -> None:
        self.send(frame(TEXT, json.dumps(fields).encode()))

    async def next(self) -> Frame:
        """Return the next frame but a ping, which is answered. It must be unfragmented and unmasked."""
        while (received := await self.next_frame()).opcode == PING:
            self.send(frame(PONG, received.payload))
        return received

    async def next_frame(self) -> Frame:
        """Return the next frame, also a ping, which is not answered."""
        async with asyncio.timeout(BOUND_S):
            first, second = await self._reader.readexactly(2)
            assert (first & 0xF0, second & 0x80) == (0x80, 0)
            size = second
            if second >= 126:
                size = int.from_bytes(await self._reader.readexactly(2 if second == 126 else 8), "big")
            return Frame(first & 0xF, await self._reader.readexactly(size))

    async def next_json(self) -> dict[str, Any]:
        """Return the object of the next frame, which must be a text frame."""
        received = await self.next()
        assert received.opcode == TEXT, received
        fields: dict[str, Any] = json.loads(received.payload)
        return fields

    async def hello(self, appkey: str, **fields: Any) -> dict[str, Any]:
        self.send_json(type="hello", appkey=appkey, **fields)
        return await self.next_json()

    async def rest(self) -> bytes:
        """Return every byte up to the end of the connection."""
        async with asyncio.timeout(BOUND_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def closed(self) -> Frame:
        """Return the gateway's close frame, after which nothing may come but the end of the connection."""
        while (received := await self.next()).opcode != CLOSE:
            pass
        self.send(frame(CLOSE, received.payload))
        assert await self.rest() == b""
        return received

    def abort(self) -> None:
        self._writer.transport.abort()

    def __del__(self) -> None:
        """Abort, so that no drain waits for a client that the test no longer holds."""
        self.abort()


def _size(length: int) -> bytes:
    if length < 126:
        return bytes([length])
    return bytes([126, *length.to_bytes(2, "big")]) if length < 65536 else bytes([127, *length.to_bytes(8, "big")])
