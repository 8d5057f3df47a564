"""A gateway for tests of device SDKs, which does to its devices what the test orders."""

import asyncio
import json
import select
import socket
import ssl
from typing import Any

from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from testkit.waiting import until_holds

BOUND_S = 60.0
WELCOME = {"type": "welcome", "token": "t-1", "key": "k-1", "heartbeat": 77, "new": True}
Json = dict[str, Any]


def push(msgid: int, content: str = "", **fields: Any) -> Json:
    return {"type": "push", "msgid": msgid, "is_notif": 0, "content": content, "expires_at": 1, **fields}


class ScriptedConnection(WSListener):
    """One connection of a device. WebSocket pings and ping frames are both received as {"type": "heartbeat"}.

    `frames_on_close` are sent when the device's close frame has come, so that they cross it.
    """

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Json] = asyncio.Queue()
        self.close_code: int | None = None
        self.answers_heartbeats = True
        self.frames_on_close: list[Json] = []
        self.transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.PING:
            self.frames.put_nowait({"type": "heartbeat"})
            if self.answers_heartbeats:
                transport.send_pong(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            self.close_code = int(frame.get_close_code().value)
            self.send(*self.frames_on_close)
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif (received := json.loads(frame.get_payload_as_bytes())) == {"type": "ping"}:
            self.frames.put_nowait({"type": "heartbeat"})
            if self.answers_heartbeats:
                self.send({"type": "pong"})
        else:
            self.frames.put_nowait(received)

    async def next(self) -> Json:
        async with asyncio.timeout(BOUND_S):
            return await self.frames.get()

    async def closed(self) -> int | None:
        """Wait until the connection has closed; return the code of the device's close frame, if it sent one."""
        async with asyncio.timeout(BOUND_S):
            await self.transport.wait_disconnected()
        return self.close_code

    def send(self, *frames: Json) -> None:
        for frame in frames:
            self.send_payload(json.dumps(frame).encode())

    def send_payload(self, payload: bytes, kind: WSMsgType = WSMsgType.TEXT, fin: bool = True) -> None:
        self.transport.send(kind, payload, fin)

    def goodbye(self, **fields: Any) -> None:
        self.send({"type": "goodbye", **fields})
        self.transport.send_close(WSCloseCode.OK)

    def drop(self) -> None:
        """Close without a close frame."""
        self.transport.disconnect(graceful=False)


class ScriptedGateway:
    """Accepts connections between `open` and `close`; `connections` holds those that the test has not fetched yet."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self.connections: asyncio.Queue[ScriptedConnection] = asyncio.Queue()
        self._context = context
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None

    def listen(self) -> None:
        """Let devices connect, whose upgrades wait until `open`."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'wss' if self._context else 'ws'}://127.0.0.1:{self._listener.getsockname()[1]}/device/v1"

    async def wait_connecting(self) -> None:
        """Wait until a device has connected, between `listen` and `open`."""
        listener = self._listener
        assert listener is not None
        await until_holds(lambda: bool(select.select([listener], [], [], 0)[0]), BOUND_S)

    async def open(self) -> None:
        if self._listener is None:
            self.listen()
        self._server = await ws_create_server(
            self._accept, sock=self._listener, ssl=self._context, enable_auto_pong=False, use_aiofastnet=False
        )

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def next_connection(self) -> ScriptedConnection:
        async with asyncio.timeout(BOUND_S):
            return await self.connections.get()

    async def welcome_next(self, **welcome: Any) -> ScriptedConnection:
        """Return the next connection after its hello was answered by a welcome with these fields."""
        connection = await self.next_connection()
        assert (await connection.next())["type"] == "hello"
        connection.send({**WELCOME, **welcome})
        return connection

    def _accept(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        assert request.headers["Sec-WebSocket-Protocol"] == "carillon.device.v1"
        connection = ScriptedConnection()
        self.connections.put_nowait(connection)
        extra = {"Sec-WebSocket-Protocol": "carillon.device.v1"}
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(extra), connection)
