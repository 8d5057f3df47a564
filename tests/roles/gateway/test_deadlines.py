"""How long the gateway waits for a device: the heartbeat they agree on, and acknowledgements."""

from typing import Any

import pytest

from protos.push.v1.push_pb2 import Message
from tests.roles.gateway.conftest import ANDROID, House, Opening
from tests.roles.gateway.scripted import Client


@pytest.mark.parametrize(
    ("wished", "agreed"),
    [(100, 100), (30, 30), (29, 30), (0, 30), (-5, 30), (1800, 1800), (1801, 1800), (10**30, 1800), (None, 240)],
)
async def test_a_wish_is_kept_between_the_bounds(house: House, wished: int | None, agreed: int) -> None:
    client = await Client.connect(house.port)
    assert (await client.hello(ANDROID, heartbeat=wished))["heartbeat"] == agreed


@pytest.mark.parametrize("wished", ["60", True, 60.5, [60], {}])
async def test_a_wish_that_is_no_number_of_seconds_is_a_fault(house: House, wished: Any) -> None:
    client = await Client.connect(house.port)
    client.send(type="hello", appkey=ANDROID, heartbeat=wished)
    assert await client.goodbye() == "protocol"
    received = client.transport.close_handshake.recv
    assert received is not None
    assert "heartbeat" in received.reason


async def test_each_device_is_given_up_after_its_own_heartbeat(open_house: Opening) -> None:
    house = await open_house(gateway_heartbeat_s=100)
    quick, usual = await Client.connect(house.port), await Client.connect(house.port)
    assert (await quick.hello(ANDROID, heartbeat=40))["heartbeat"] == 40
    assert (await usual.hello(ANDROID))["heartbeat"] == 100
    house.clock.move(69)
    assert (await quick.ask(type="get_device", id=1))["type"] == "ok"
    house.clock.move(70)
    assert await quick.goodbye() == "idle"
    house.clock.move(20)
    assert (await usual.ask(type="get_device", id=1))["type"] == "ok"
    house.clock.move(160)
    assert await usual.goodbye() == "idle"


async def test_a_device_that_keeps_a_push_is_sent_away_so_that_it_comes_again(house: House) -> None:
    client, connection = await pushed(house, 1)
    house.clock.move(59)
    await answered(client)
    house.clock.move(1)
    assert await client.goodbye() == "idle"
    assert await house.delivery.until(house.delivery.disconnected) == [connection]
    events, _ = await house.session_facts(enough=2)
    assert events[-1].reason == "unacknowledged"


async def test_a_device_that_acknowledges_stays(house: House) -> None:
    client, connection = await pushed(house, 1, 2)
    client.send(type="ack", msgids=[2, 1, 77])
    await answered(client)
    house.clock.move(60)
    await answered(client)
    house.delivery.send(Message(content="c"), [connection], [3])
    assert (await client.next())["msgid"] == 3
    house.clock.move(59)
    await answered(client)
    house.clock.move(1)
    assert await client.goodbye() == "idle"


async def test_the_oldest_unacknowledged_push_counts_even_when_it_is_sent_twice(house: House) -> None:
    client, connection = await pushed(house, 1, 2)
    client.send(type="ack", msgids=[2])
    await answered(client)
    house.clock.move(30)
    house.delivery.send(Message(content="c"), [connection], [1])
    assert (await client.next())["msgid"] == 1
    house.clock.move(30)
    assert await client.goodbye() == "idle"


async def pushed(house: House, *msgids: int) -> tuple[Client, int]:
    """A device that was sent these messages, and its connection."""
    client = await Client.connect(house.port)
    await client.hello(ANDROID)
    (connection,) = await house.delivery.until(house.delivery.connections)
    for msgid in msgids:
        house.delivery.send(Message(content="c"), [connection], [msgid])
        assert (await client.next())["msgid"] == msgid
    return client, connection


async def answered(client: Client) -> None:
    assert (await client.ask(type="get_device", id=1))["type"] == "ok"
