"""A drain: goodbyes and reconnects are spread over time."""

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.decide import DRAIN_MS, drained_retry_ms, goodbye_delay_ms
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import DeviceClient, RawClient
from tests.roles.gateway.conftest import StartGateway


async def test_a_drain_disconnects_at_its_rate_and_serves_the_other_devices(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(gateway_drain_per_s=10)
    clients = [await DeviceClient.connect(gateway.port) for _ in range(4)]
    numbers = {await connected_number(gateway, client) for client in clients}
    stopping = asyncio.create_task(gateway.stop())
    left = set(clients)
    for step in range(3):
        left.remove(await first_drained(left))
        newcomer = await RawClient.connect(gateway.port)
        assert (await newcomer.next_json())["reason"] == "draining"
        await newcomer.closed()
        for client in left:
            client.send(type="ack", msgids=[step + 1])
            assert (await client.request(type="get_device", id=1))["type"] == "ok"
        assert not stopping.done()
        gateway.clock.move(0.1)
    await left.pop().goodbye()
    await stopping
    acknowledged = [msgid for number, msgid, _ in gateway.delivery.reports() if number in numbers]
    assert sorted(acknowledged) == [1, 1, 1, 2, 2, 3]


async def connected_number(gateway: RunningGateway, client: DeviceClient) -> int:
    welcome = await client.hello(ANDROID)
    number = gateway.keys.device_number(ANDROID, welcome["token"], welcome["key"])
    assert number is not None
    return number


async def first_drained(clients: set[DeviceClient]) -> DeviceClient:
    """Return the only client that has got a goodbye."""
    ends = {asyncio.create_task(client.goodbye()): client for client in clients}
    done, waiting = await asyncio.wait(ends, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    assert [task.result() for task in done] == ["draining"]
    return ends[done.pop()]


@given(st.integers(1, 10_000_000), st.integers(1, 1_000_000))
def test_goodbyes_of_a_drain_are_spread_by_rate_within_the_bound(connections: int, per_s: int) -> None:
    moments = [
        goodbye_delay_ms(index, connections, per_s) for index in range(0, connections, max(1, connections // 50))
    ]
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert moments[-1] <= DRAIN_MS
    if connections <= per_s:
        assert goodbye_delay_ms(connections - 1, connections, per_s) <= 1000


def test_drained_devices_reconnect_no_faster_than_the_rate() -> None:
    random = Random(1)
    returns = [drained_retry_ms(10_000, 1000, random) for _ in range(10_000)]
    seconds = [sum(second * 1000 <= each - 100 < (second + 1) * 1000 for each in returns) for second in range(10)]
    assert sum(seconds) == 10_000
    assert max(seconds) < 1150
