"""A drain: goodbyes and reconnects are spread over time."""

import asyncio

from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import PING, DeviceClient, RawClient, frame
from tests.services.gateway.conftest import StartGateway


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


async def test_a_drain_says_goodbye_to_all_and_spreads_their_reconnects(gateway: RunningGateway) -> None:
    clients = [await DeviceClient.connect(gateway.port) for _ in range(20)]
    for client in clients:
        await client.hello(ANDROID)
    unwelcomed = await DeviceClient.connect(gateway.port)
    await gateway.stop()
    goodbyes = [await client.next() for client in clients]
    assert {goodbye["reason"] for goodbye in goodbyes} == {"draining"}
    assert len({goodbye["retry_after_ms"] for goodbye in goodbyes}) > 5
    assert await unwelcomed.goodbye() == "draining"


async def test_what_crosses_the_goodbye_is_reported_before_the_disconnection(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send_json(type="ack", msgids=[1])
    await gateway.delivery.until(gateway.delivery.reports)
    stopping = asyncio.create_task(gateway.stop())
    assert (await client.next_json())["reason"] == "draining"
    client.send_json(type="ack", msgids=[2])
    client.send_json(type="report", event="clicked", msgid=1, id=1)
    client.send_json(type="get_device", id=2)  # is not answered
    client.send(frame(PING))
    assert not gateway.delivery.disconnected()
    await client.closed()
    await stopping
    assert [msgid for _, msgid, _ in gateway.delivery.reports()] == [1, 2, 1]
    last_report = max(n for n, request in enumerate(gateway.delivery.requests) if request.reports)
    (disconnected,) = [n for n, request in enumerate(gateway.delivery.requests) if request.disconnected]
    assert last_report <= disconnected
