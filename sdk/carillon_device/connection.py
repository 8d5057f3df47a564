"""One WebSocket connection to the gateway. Only this file imports picows."""

import asyncio
from collections.abc import Mapping
from ssl import SSLContext
from typing import Any

from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from carillon_device.errors import UnavailableError
from carillon_device.frames import SUBPROTOCOL, Frame, decode, encode

MAX_FRAME_BYTES = 1024 * 1024
MAX_QUEUED = 2000
"""Received frames that wait to be read; a connection with more is dropped."""


class GatewayConnection(WSListener):
    """An open connection; `next` returns the gateway's frames in order."""

    def __init__(self) -> None:
        self._transport: WSTransport | None = None
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._pongs: asyncio.Queue[None] = asyncio.Queue(1)
        self._partial = bytearray()

    async def next(self) -> Frame | None:
        """Return the next frame; None when the connection has closed."""
        return await self._frames.get()

    def send(self, frame: Mapping[str, Any]) -> None:
        if self._transport is None:
            raise UnavailableError("the device is not connected")
        self._transport.send(WSMsgType.TEXT, encode(frame))

    async def ping(self) -> None:
        """Send a ping and return when the gateway has answered it."""
        if self._transport is not None:
            self._transport.send_ping()
        await self._pongs.get()

    async def close(self) -> None:
        """Close with the closing handshake."""
        if self._transport is not None:
            self._transport.send_close(WSCloseCode.OK)
            await self._transport.wait_disconnected()

    def drop(self) -> None:
        """Close at once, without the closing handshake."""
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        match frame.msg_type:
            case WSMsgType.TEXT | WSMsgType.CONTINUATION:
                self._partial += frame.get_payload_as_bytes()
                if len(self._partial) > MAX_FRAME_BYTES:
                    self.drop()
                elif frame.fin:
                    payload, self._partial = bytes(self._partial), bytearray()
                    self._received(transport, payload)
            case WSMsgType.PONG if self._pongs.empty():
                self._pongs.put_nowait(None)
            case WSMsgType.CLOSE:
                transport.send_close(frame.get_close_code())
                transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._frames.put_nowait(None)

    def _received(self, transport: WSTransport, payload: bytes) -> None:
        try:
            frame = decode(payload.decode())
        except UnicodeDecodeError:
            transport.send_close(WSCloseCode.INVALID_TEXT)
            transport.disconnect()
            return
        if frame is None:
            return
        if self._frames.qsize() < MAX_QUEUED:
            self._frames.put_nowait(frame)
        else:
            self.drop()


async def open_connection(url: str, ssl: SSLContext | None) -> GatewayConnection:
    """Connect. UnavailableError: the gateway cannot be reached, or does not speak WebSocket."""
    try:
        _, connection = await ws_connect(
            GatewayConnection,
            url,
            ssl_context=ssl,
            max_redirects=0,
            max_frame_size=MAX_FRAME_BYTES,
            use_aiofastnet=False,
            read_buffer_init_size=2048,
            extra_headers={"Sec-WebSocket-Protocol": SUBPROTOCOL},
        )
    except (OSError, WSError) as error:
        raise UnavailableError(str(error) or type(error).__name__) from None
    if not isinstance(connection, GatewayConnection):  # None when the gateway closed during the upgrade
        raise UnavailableError("the connection was lost")
    return connection
