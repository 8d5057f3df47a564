"""A stop: devices go one after the other, and come back as slowly."""

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.decide import DRAIN_MS, drained_retry_ms, goodbye_delay_ms
from tests.roles.gateway.conftest import ANDROID, House, Opening
from tests.roles.gateway.listener.raw import RawClient
from tests.roles.gateway.scripted import Client


async def test_a_stop_sends_devices_away_at_its_rate_and_listens_to_the_others(open_house: Opening) -> None:
    house = await open_house(gateway_drain_per_s=10)
    clients = [await Client.connect(house.port) for _ in range(4)]
    numbers = {await greeted(house, client) for client in clients}
    stopping = asyncio.create_task(house.stop_gateway())
    left = set(clients)
    for step in range(3):
        left.remove(await first_sent_away(left))
        newcomer = await RawClient.connect(house.port)
        assert (await newcomer.hear())["reason"] == "draining"
        await newcomer.ending()
        for client in left:
            client.send(type="ack", msgids=[step + 1])
            assert (await client.ask(type="get_device", id=1))["type"] == "ok"
        assert not stopping.done()
        house.clock.move(0.1)
    await left.pop().goodbye()
    await stopping
    acknowledged = [msgid for number, msgid, _ in house.delivery.reports() if number in numbers]
    assert sorted(acknowledged) == [1, 1, 1, 2, 2, 3]


async def greeted(house: House, client: Client) -> int:
    welcome = await client.hello(ANDROID)
    number = house.keys.device_number(ANDROID, welcome["token"], welcome["key"])
    assert number is not None
    return number


async def first_sent_away(clients: set[Client]) -> Client:
    """The one that has a goodbye; the others have none."""
    ends = {asyncio.create_task(client.goodbye()): client for client in clients}
    done, waiting = await asyncio.wait(ends, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    assert [task.result() for task in done] == ["draining"]
    return ends[done.pop()]


@given(st.integers(1, 10_000_000), st.integers(1, 1_000_000))
def test_a_stop_has_its_rate_and_its_end(connections: int, per_s: int) -> None:
    moments = [
        goodbye_delay_ms(index, connections, per_s) for index in range(0, connections, max(1, connections // 50))
    ]
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert moments[-1] <= DRAIN_MS
    if connections <= per_s:
        assert goodbye_delay_ms(connections - 1, connections, per_s) <= 1000


def test_devices_come_back_no_faster_than_the_rate() -> None:
    random = Random(1)
    returns = [drained_retry_ms(10_000, 1000, random) for _ in range(10_000)]
    seconds = [sum(second * 1000 <= each - 100 < (second + 1) * 1000 for each in returns) for second in range(10)]
    assert sum(seconds) == 10_000
    assert max(seconds) < 1150
