"""A delivery peer that does what the test says, and a device that sends what the test says."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from protos.delivery.v1.delivery_pb2 import (
    AttachRequest,
    AttachResponse,
    Close,
    GetBroadcastRequest,
    GetBroadcastResponse,
    Send,
)
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceServicer
from protos.push.v1.push_pb2 import Message
from services.runtime.errors import NotFoundError
from services.runtime.rpc.transport import Context

BOUND_S = 10.0


async def until(condition: Callable[[], Any], changed: asyncio.Event) -> Any:
    """Wait for something that `changed` announces."""
    async with asyncio.timeout(BOUND_S):
        while not (result := condition()):
            changed.clear()
            await changed.wait()
    return result


class ScriptedDelivery(DeliveryServiceServicer):
    """Notes what gateways tell, and records it at once if it `confirms`; sends what it is given to the last stream."""

    def __init__(self) -> None:
        self.requests: list[AttachRequest] = []
        self.attached = 0
        self.confirms = True
        self.changed = asyncio.Event()
        self._outgoing: asyncio.Queue[AttachResponse | None] = asyncio.Queue()

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        raise NotFoundError("no broadcasts here: a gateway never asks for one")

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        outgoing = self._outgoing = asyncio.Queue()
        self.attached += 1
        self.changed.set()
        taking = asyncio.create_task(self._take(requests, outgoing))
        try:
            while (response := await outgoing.get()) is not None:
                yield response
        finally:
            taking.cancel()

    async def _take(
        self, requests: AsyncIterator[AttachRequest], outgoing: "asyncio.Queue[AttachResponse | None]"
    ) -> None:
        async for request in requests:
            self.requests.append(request)
            self.changed.set()
            if request.sequence and self.confirms:
                outgoing.put_nowait(AttachResponse(recorded=request.sequence))
        outgoing.put_nowait(None)

    def send(self, message: Message, connections: list[int], msgids: list[int], expires_ms: int = 5) -> None:
        send = Send(
            message=message,
            expires_ms=expires_ms,
            connections=array("Q", connections).tobytes(),
            msgids=array("Q", msgids).tobytes(),
        )
        self._outgoing.put_nowait(AttachResponse(sends=[send]))

    def close(self, connection: int, reason: str) -> None:
        self._outgoing.put_nowait(AttachResponse(closes=[Close(connection=connection, reason=reason)]))

    def break_stream(self) -> None:
        self._outgoing.put_nowait(None)

    def connections(self) -> list[int]:
        """Every announced connection, in order, again when it was announced again."""
        return [connected.connection for request in self.requests for connected in request.connected]

    def disconnected(self) -> list[int]:
        return [connection for request in self.requests for connection in request.disconnected]

    def reports(self) -> list[tuple[int, int, int]]:
        """(number, msgid, kind) of every report, in order."""
        return [
            row
            for request in self.requests
            for reports in request.reports
            for row in zip(
                numpy.frombuffer(reports.numbers, "<u4").tolist(),
                numpy.frombuffer(reports.msgids, "<u8").tolist(),
                list(reports.kinds),
                strict=True,
            )
        ]

    async def until(self, condition: Callable[[], Any]) -> Any:
        return await until(condition, self.changed)


class Client(WSListener):
    """A device by hand: raw frames out, parsed frames and the close code in."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.texts: list[str] = []
        self.pongs: asyncio.Queue[bytes] = asyncio.Queue()
        self.close_code: int | None = None
        self.transport: WSTransport

    @classmethod
    async def connect(cls, port: int, headers: dict[str, str] | None = None, path: str = "/device/v1") -> "Client":
        url = f"ws://127.0.0.1:{port}{path}"
        transport, client = await ws_connect(cls, url, use_aiofastnet=False, extra_headers=headers)
        assert isinstance(client, Client)
        client.transport = transport
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
        self.raw(json.dumps(frame).encode())

    def raw(self, payload: bytes, kind: WSMsgType = WSMsgType.TEXT, fin: bool = True) -> None:
        self.transport.send(kind, payload, fin)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(BOUND_S):
            return await self.frames.get()

    async def hello(self, appkey: str, **fields: Any) -> dict[str, Any]:
        self.send(type="hello", appkey=appkey, **fields)
        return await self.next()

    async def ask(self, **frame: Any) -> dict[str, Any]:
        self.send(**frame)
        return await self.next()

    async def closed(self) -> int | None:
        """The code of the close frame that the gateway sent."""
        async with asyncio.timeout(BOUND_S):
            await self.transport.wait_disconnected()
        return self.close_code

    async def goodbye(self) -> str:
        """The last frame's reason, once the connection has ended."""
        await self.closed()
        frame = [await self.next() for _ in range(self.frames.qsize())][-1]
        assert frame["type"] == "goodbye"
        assert isinstance(frame["retry_after_ms"], int)
        return str(frame["reason"])
