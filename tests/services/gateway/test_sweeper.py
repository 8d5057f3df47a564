"""Deadlines of a welcomed device: the agreed heartbeat, and acknowledgements."""

from typing import Any

import pytest

from protos.push.v1.push_pb2 import Message
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import DeviceClient
from tests.services.gateway.conftest import StartGateway


@pytest.mark.parametrize(
    ("requested", "agreed"),
    [(100, 100), (30, 30), (29, 30), (0, 30), (-5, 30), (1800, 1800), (1801, 1800), (10**30, 1800), (None, 240)],
)
async def test_a_requested_heartbeat_is_kept_within_the_bounds(
    gateway: RunningGateway, requested: int | None, agreed: int
) -> None:
    client = await DeviceClient.connect(gateway.port)
    assert (await client.hello(ANDROID, heartbeat=requested))["heartbeat"] == agreed


@pytest.mark.parametrize("requested", ["60", True, 60.5, [60], {}])
async def test_a_requested_heartbeat_that_is_no_integer_is_refused(gateway: RunningGateway, requested: Any) -> None:
    client = await DeviceClient.connect(gateway.port)
    client.send(type="hello", appkey=ANDROID, heartbeat=requested)
    assert await client.goodbye() == "protocol"
    received = client.transport.close_handshake.recv
    assert received is not None
    assert "heartbeat" in received.reason


async def test_each_device_is_idle_after_its_own_heartbeat(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(gateway_heartbeat_s=100)
    quick, usual = await DeviceClient.connect(gateway.port), await DeviceClient.connect(gateway.port)
    assert (await quick.hello(ANDROID, heartbeat=40))["heartbeat"] == 40
    assert (await usual.hello(ANDROID))["heartbeat"] == 100
    gateway.clock.move(69)
    assert (await quick.request(type="get_device", id=1))["type"] == "ok"
    gateway.clock.move(70)
    assert await quick.goodbye() == "idle"
    gateway.clock.move(20)
    assert (await usual.request(type="get_device", id=1))["type"] == "ok"
    gateway.clock.move(160)
    assert await usual.goodbye() == "idle"


async def test_a_device_that_does_not_acknowledge_a_push_is_disconnected(gateway: RunningGateway) -> None:
    client, connection = await pushed(gateway, 1)
    gateway.clock.move(59)
    await answered(client)
    gateway.clock.move(1)
    assert await client.goodbye() == "idle"
    assert await gateway.delivery.until(gateway.delivery.disconnected) == [connection]
    events, _ = await gateway.session_facts(enough=2)
    assert events[-1].reason == "unacknowledged"


async def test_a_device_that_acknowledges_stays_connected(gateway: RunningGateway) -> None:
    client, connection = await pushed(gateway, 1, 2)
    client.send(type="ack", msgids=[2, 1, 77])
    await answered(client)
    gateway.clock.move(60)
    await answered(client)
    gateway.delivery.send(Message(content="c"), [connection], [3])
    assert (await client.next())["msgid"] == 3
    gateway.clock.move(59)
    await answered(client)
    gateway.clock.move(1)
    assert await client.goodbye() == "idle"


async def test_a_resend_does_not_extend_the_acknowledgement_deadline(gateway: RunningGateway) -> None:
    client, connection = await pushed(gateway, 1, 2)
    client.send(type="ack", msgids=[2])
    await answered(client)
    gateway.clock.move(30)
    gateway.delivery.send(Message(content="c"), [connection], [1])
    gateway.delivery.send(Message(content="c"), [connection], [3])
    assert (await client.next())["msgid"] == 3, "a push is sent over one connection once"
    gateway.clock.move(30)
    assert await client.goodbye() == "idle"


async def pushed(gateway: RunningGateway, *msgids: int) -> tuple[DeviceClient, int]:
    """Return a device that was sent these messages, and its connection id."""
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    for msgid in msgids:
        gateway.delivery.send(Message(content="c"), [connection], [msgid])
        assert (await client.next())["msgid"] == msgid
    return client, connection


async def answered(client: DeviceClient) -> None:
    assert (await client.request(type="get_device", id=1))["type"] == "ok"
