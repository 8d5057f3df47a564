"""Servers of calls between roles: their stop, restart and addresses."""

import asyncio
from pathlib import Path

import pytest

from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse
from protos.runtime.v1.log_pb2_grpc import (
    PositionsServiceServicer,
    PositionsServiceStub,
    add_PositionsServiceServicer_to_server,
)
from services.errors import CarillonError, UnavailableError
from services.net.rpc.channel import connect
from services.net.rpc.server import Context, RpcListener, Streams, serve
from tests.services.net.rpc.servicers import BOUND_S, OverASocket, ServicersOnChannel, names


async def test_a_server_that_stops_makes_calls_and_streams_unavailable(tmp_path: Path) -> None:
    async with OverASocket(ServicersOnChannel(), tmp_path) as servicers:
        servicers.positions.hangs = True
        call = asyncio.create_task(servicers.wait())
        await asyncio.wait_for(servicers.positions.began.wait(), BOUND_S)
        async with servicers.attach(names("a", then=asyncio.Event())) as responses:
            await anext(responses)
            assert servicers.server is not None
            await servicers.server.stop(grace=0.05)
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(anext(responses), BOUND_S)
        with pytest.raises(UnavailableError):
            await call
        with pytest.raises(UnavailableError):
            await servicers.wait()


async def test_streams_end_at_once_when_their_listener_stops(tmp_path: Path) -> None:
    """A stream that waits for its server, as a gateway's does, would delay the stop and the takeover."""
    server = serve([address := f"unix:{tmp_path}/s"], streams=(streams := Streams()))
    servicers = ServicersOnChannel()
    servicers.add_to(server)
    listening = asyncio.create_task(RpcListener("calls", server, streams).run(ready := asyncio.Event()))
    await ready.wait()
    servicers.channel = connect(address)
    async with servicers.attach(names("a", then=asyncio.Event())) as responses:
        await anext(responses)
        listening.cancel()
        with pytest.raises(UnavailableError, match="the process is stopping"):
            await asyncio.wait_for(anext(responses), BOUND_S)
    assert servicers.delivery.ended.is_set()
    await asyncio.wait([listening])
    await servicers.channel.close()


async def test_a_call_in_flight_is_answered_before_the_server_stops(tmp_path: Path) -> None:
    async with OverASocket(ServicersOnChannel(), tmp_path) as servicers:
        opened = asyncio.Event()

        async def slow(request: AwaitRequest, context: Context) -> AwaitResponse:
            servicers.positions.began.set()
            await opened.wait()
            return AwaitResponse()

        servicers.positions.Await = slow  # type: ignore[method-assign]
        assert servicers.server is not None
        add_PositionsServiceServicer_to_server(servicers.positions, servicers.server)
        call = asyncio.create_task(servicers.wait())
        await asyncio.wait_for(servicers.positions.began.wait(), BOUND_S)
        stopping = asyncio.create_task(servicers.server.stop(grace=BOUND_S))
        opened.set()
        assert await call == AwaitResponse()
        await stopping


async def test_a_channel_reconnects_soon_after_the_server_restarts(tmp_path: Path) -> None:
    async with OverASocket(ServicersOnChannel(), tmp_path) as first:
        await first.wait()
        channel = connect(f"unix:{tmp_path}/s")
        stub = PositionsServiceStub(channel)
        await stub.Await(AwaitRequest())
    for _ in range(20):
        with pytest.raises(UnavailableError):
            await stub.Await(AwaitRequest())
    async with OverASocket(ServicersOnChannel(), tmp_path), asyncio.timeout(60):
        await stub.Await(AwaitRequest(), wait_for_ready=True)
        await channel.close()


async def test_channels_to_one_address_have_connections_of_their_own(tmp_path: Path) -> None:
    clients: list[str] = []

    class Positions(PositionsServiceServicer):
        async def Await(self, request: AwaitRequest, context: Context) -> AwaitResponse:
            clients.append(context.peer())
            return AwaitResponse()

    server = serve([f"unix:{tmp_path}/s"])
    add_PositionsServiceServicer_to_server(Positions(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for channel in [connect(f"127.0.0.1:{port}") for _ in range(2)]:
        await PositionsServiceStub(channel).Await(AwaitRequest())
    await server.stop(0)
    assert len(set(clients)) == 2


async def test_two_servers_cannot_share_a_port(tmp_path: Path) -> None:
    first = serve([f"unix:{tmp_path}/first"])
    port = first.add_insecure_port("127.0.0.1:0")
    await first.start()
    with pytest.raises(CarillonError, match=rf"127\.0\.0\.1:{port}.*in use"):
        serve([f"127.0.0.1:{port}"])
    await first.stop(0)


async def test_an_address_that_cannot_be_listened_at_is_one_clear_line(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/{'x' * 120}"
    with pytest.raises(CarillonError) as raised:
        serve([address])
    assert address in str(raised.value)
    assert "\n" not in str(raised.value)
