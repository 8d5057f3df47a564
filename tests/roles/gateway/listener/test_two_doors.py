"""Two gateways at one port, with the real delivery behind them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from services.delivery.main import build as build_delivery
from services.delivery.settings import DeliverySettings
from services.domain.topics import TOPICS
from services.gateway.main import build
from services.gateway.server import GatewayServer
from services.gateway.settings import GatewaySettings
from services.runtime.rpc.peers import Peers
from services.runtime.rpc.transport import LocalServer, Server
from tests.roles.gateway.conftest import ANDROID, PARTITIONS, House, start, stop
from tests.roles.gateway.scripted import Client

GATEWAYS_BITS = 0xFFFF
"""The part of a connection's id that is its gateway's own."""


@pytest.fixture
async def shared_port(house: House, tmp_path: Path) -> AsyncIterator[int]:
    delivery = LocalServer()
    channels = {role: house.context.peers.all(role) for role in ("registry", "targeting")}
    context = replace(house.context, peers=Peers({**channels, "delivery": [delivery.channel()]}, TOPICS))
    settings = DeliverySettings(partitions=PARTITIONS, data_dir=str(tmp_path), apns_url="http://127.0.0.1:1")
    role = build_delivery(settings, context)
    for add in role.servicers:
        add(cast(Server, delivery))
    tasks = [await start(service) for service in role.services]
    port = 0
    for _ in range(2):
        gateway = build(GatewaySettings(partitions=PARTITIONS, gateway_port=port, gateway_share_port=True), context)
        tasks += [await start(service) for service in gateway.services]
        door = gateway.services[-1]
        assert isinstance(door, GatewayServer)
        port = door.port
    yield port
    await stop(tasks)


async def test_both_get_devices(house: House, shared_port: int) -> None:
    for _ in range(40):
        assert (await (await Client.connect(shared_port)).hello(ANDROID))["type"] == "welcome"
    events, _ = await house.session_facts(enough=40)
    assert len({event.connection & GATEWAYS_BITS for event in events}) == 2


async def test_a_device_that_comes_to_the_other_gateway_is_replaced_there(house: House, shared_port: int) -> None:
    device = await Client.connect(shared_port)
    welcome = await device.hello(ANDROID)
    gateways: list[int] = []
    while len(set(gateways)) < 2 or gateways[-1] == gateways[-2]:
        house.clock.move(0.001)
        newer = await Client.connect(shared_port)
        assert (await newer.hello(ANDROID, token=welcome["token"], key=welcome["key"]))["new"] is False
        assert await device.goodbye() == "replaced"
        device = newer
        events, _ = await house.session_facts(enough=2 * len(gateways) + 3)
        opened = {event.connection for event in events} - {event.connection for event in events if event.reason}
        gateways.append(opened.pop() & GATEWAYS_BITS)
        assert not opened
        assert len(gateways) < 50
    assert (await device.ask(type="get_device", id=1))["type"] == "ok"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await device.frames.get()
