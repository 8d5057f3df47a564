"""Gateways that hang without closing their connection, over a real socket, and what happens to their devices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.net.rpc.channel import connect
from services.net.rpc.server import Keepalive, serve
from testkit.delivery.records import NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.faults.stalling_proxy import StallingProxy, stalling_proxy
from testkit.services import TIMEOUT_S

A = NumberedDevice(0, 1)
KEEPALIVE = Keepalive(silence_s=0.2, answer_s=0.5)


@asynccontextmanager
async def behind_proxy(delivery: DeliveryHarness) -> AsyncIterator[StallingProxy]:
    """Serve delivery on a socket, behind a proxy that can stall."""
    server = serve([], keepalive=KEEPALIVE)
    for add in delivery.role.servicers:
        add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with stalling_proxy(port) as proxy:
            yield proxy
    finally:
        await server.stop(0)


async def test_a_hanging_gateway_is_removed_and_its_devices_are_served_by_another(
    delivery: DeliveryHarness,
) -> None:
    """The clock stands still, so it is not the takeover's deadline that lets the other gateway serve the device."""
    async with delivery.running(), behind_proxy(delivery) as proxy:
        channel = connect(proxy.address)
        async with delivery.gateway(channel) as hanging, delivery.gateway() as other:
            hanging.connect((1, A))
            first = await delivery.send(A)
            await hanging.expect((1, first))
            proxy.stall()
            second = await delivery.send(A)
            other.connect((2, A))
            await other.expect((2, first), (2, second))
        await channel.close()


async def test_an_idle_gateway_is_not_removed(delivery: DeliveryHarness) -> None:
    async with delivery.running(), behind_proxy(delivery) as proxy:
        channel = connect(proxy.address)
        async with delivery.gateway(channel) as gateway:
            gateway.connect((1, A))
            first = await delivery.send(A)
            await gateway.expect((1, first))
            async with asyncio.timeout(TIMEOUT_S):
                await proxy.passes(10)
            second = await delivery.send(A)
            await gateway.expect((1, first), (1, second))
            assert not gateway.task.done()
        await channel.close()
