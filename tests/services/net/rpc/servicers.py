"""Servicers that answer as the test says, and a channel to them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse, Close
from protos.delivery.v1.delivery_pb2_grpc import (
    DeliveryServiceServicer,
    DeliveryServiceStub,
    add_DeliveryServiceServicer_to_server,
)
from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse
from protos.runtime.v1.log_pb2_grpc import (
    PositionsServiceServicer,
    PositionsServiceStub,
    add_PositionsServiceServicer_to_server,
)
from services.errors import InputError, NotFoundError
from services.net.rpc.channel import Channel, connect
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context, Server, serve

BOUND_S = 60.0
CANARY = "canary-7f3a"


class Positions(PositionsServiceServicer):
    """A servicer that answers as the test says, and records when a call began and whether it was cancelled."""

    def __init__(self) -> None:
        self.answer: Callable[[AwaitRequest], AwaitResponse] = lambda request: AwaitResponse(produced=request.positions)
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.released = asyncio.Event()
        self.hangs = False

    async def Await(self, request: AwaitRequest, context: Context) -> AwaitResponse:
        self.began.set()
        try:
            if self.hangs:
                await self.released.wait()
            return self.answer(request)
        finally:
            self.ended.set()


class Delivery(DeliveryServiceServicer):
    """A servicer that returns each gateway's name; the name may ask for an error instead."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        try:
            async for request in requests:
                if request.gateway == "wrong":
                    raise InputError("gateway: not this one")
                if request.gateway == "broken":
                    raise ValueError(CANARY)
                yield AttachResponse(closes=[Close(reason=request.gateway)])
        finally:
            self.ended.set()

    async def GetBroadcast(self, request: Any, context: Context) -> Any:
        raise NotFoundError("no broadcast is known here")


class ServicersOnChannel:
    """The servicers and a channel to them."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.delivery = Delivery()
        self.channel: Channel
        self.server: Server | None = None

    def add_to(self, server: Server | LocalServer) -> None:
        add_PositionsServiceServicer_to_server(self.positions, cast(Server, server))
        add_DeliveryServiceServicer_to_server(self.delivery, cast(Server, server))

    async def wait(self, request: AwaitRequest | None = None, seconds: float | None = None) -> AwaitResponse:
        stub = PositionsServiceStub(self.channel)
        return await asyncio.wait_for(stub.Await(request or AwaitRequest(), timeout=seconds), BOUND_S)

    def attach(self, requests: AsyncIterator[AttachRequest]) -> Any:
        return aclosing(cast(Any, aiter(DeliveryServiceStub(self.channel).Attach(requests))))

    async def converse(self, requests: AsyncIterator[AttachRequest], answers: list[str]) -> None:
        """Attach, and record the answers until the stream ends."""
        async with asyncio.timeout(BOUND_S), self.attach(requests) as responses:
            async for response in responses:
                answers += [close.reason for close in response.closes]


class OverASocket:
    """Serve the servicers on a Unix socket while the block runs."""

    def __init__(self, servicers: ServicersOnChannel, directory: Path) -> None:
        self._servicers = servicers
        self._address = f"unix:{directory}/s"

    async def __aenter__(self) -> ServicersOnChannel:
        server = serve([self._address])
        self._servicers.server = server
        self._servicers.add_to(server)
        await server.start()
        self._servicers.channel = connect(self._address)
        return self._servicers

    async def __aexit__(self, *_: object) -> None:
        assert self._servicers.server is not None
        await self._servicers.channel.close()
        await self._servicers.server.stop(0)


def fails_with(error: BaseException) -> Callable[[AwaitRequest], AwaitResponse]:
    def answer(request: AwaitRequest) -> AwaitResponse:
        raise error

    return answer


async def names(*gateways: str, then: asyncio.Event | None = None) -> AsyncIterator[AttachRequest]:
    for gateway in gateways:
        yield AttachRequest(gateway=gateway)
    if then is not None:
        await then.wait()
