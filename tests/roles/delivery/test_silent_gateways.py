"""A gateway that hangs without a word, over a real connection, and what becomes of its devices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.runtime.rpc.transport import Keepalive, connect, serve
from testkit.proxy import StallingProxy, stalling_proxy
from tests.roles.delivery.conftest import BOUND_S, At, House

A = At(0, 1)
KEEPALIVE = Keepalive(silence_s=0.2, answer_s=0.5)


@asynccontextmanager
async def far_away(house: House) -> AsyncIterator[StallingProxy]:
    """Delivery behind a socket, and the way to it."""
    server = serve([], keepalive=KEEPALIVE)
    for add in house.role.servicers:
        add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with stalling_proxy(port) as proxy:
            yield proxy
    finally:
        await server.stop(0)


async def test_a_gateway_that_hangs_is_given_up_and_its_devices_get_their_messages_elsewhere(house: House) -> None:
    """The clock stands still: it is not the bound for last words that lets the other gateway have the device."""
    async with house.running(), far_away(house) as way:
        channel = connect(way.address)
        async with house.gateway(channel) as hanging, house.gateway() as other:
            hanging.connect((1, A))
            first = await house.send(A)
            await hanging.gets((1, first))
            way.stall()
            second = await house.send(A)
            other.connect((2, A))
            await other.gets((2, first), (2, second))
        await channel.close()


async def test_a_gateway_that_has_nothing_to_say_is_not_given_up(house: House) -> None:
    async with house.running(), far_away(house) as way:
        channel = connect(way.address)
        async with house.gateway(channel) as idle:
            idle.connect((1, A))
            first = await house.send(A)
            await idle.gets((1, first))
            async with asyncio.timeout(BOUND_S):
                await way.passes(10)
            second = await house.send(A)
            await idle.gets((1, first), (1, second))
            assert not idle.task.done()
        await channel.close()
