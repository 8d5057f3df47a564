"""Two gateways at one port, with the real delivery role."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from services.delivery.main import build as build_delivery
from services.domain.topics import TOPICS
from services.gateway.listener import DeviceListener
from services.gateway.main import build
from services.gateway.settings import GatewaySettings
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Server
from services.replica.peers import Peers
from testkit.delivery.settings import settings_without_vendors
from testkit.gateway.role import ANDROID, PARTITIONS, RunningGateway, start_service, stop_services
from testkit.gateway.websocket import DeviceClient

GATEWAY_BITS = 0xFFFF
"""The bits of a connection id that are its gateway's own."""


@pytest.fixture
async def shared_port(gateway: RunningGateway, tmp_path: Path) -> AsyncIterator[int]:
    delivery = LocalServer()
    channels = {role: gateway.context.peers.all(role) for role in ("registry", "targeting")}
    context = replace(gateway.context, peers=Peers({**channels, "delivery": [delivery.channel()]}, TOPICS))
    settings = settings_without_vendors(partitions=PARTITIONS, data_dir=str(tmp_path))
    role = build_delivery(settings, context)
    for add in role.servicers:
        add(cast(Server, delivery))
    tasks = [await start_service(service) for service in role.services]
    port = 0
    for _ in range(2):
        role = build(GatewaySettings(partitions=PARTITIONS, gateway_port=port, gateway_share_port=True), context)
        tasks += [await start_service(service) for service in role.services]
        server = role.services[-1]
        assert isinstance(server, DeviceListener)
        port = server.port
    yield port
    await stop_services(tasks)


async def test_both_gateways_get_connections(gateway: RunningGateway, shared_port: int) -> None:
    for _ in range(40):
        assert (await (await DeviceClient.connect(shared_port)).hello(ANDROID))["type"] == "welcome"
    events, _ = await gateway.session_facts(enough=40)
    assert len({event.connection & GATEWAY_BITS for event in events}) == 2


async def test_a_reconnect_at_the_other_gateway_replaces_the_older_connection(
    gateway: RunningGateway, shared_port: int
) -> None:
    device = await DeviceClient.connect(shared_port)
    welcome = await device.hello(ANDROID)
    gateways: list[int] = []
    while len(set(gateways)) < 2 or gateways[-1] == gateways[-2]:
        gateway.clock.move(0.001)
        newer = await DeviceClient.connect(shared_port)
        assert (await newer.hello(ANDROID, token=welcome["token"], key=welcome["key"]))["new"] is False
        assert await device.goodbye() == "replaced"
        device = newer
        events, _ = await gateway.session_facts(enough=2 * len(gateways) + 3)
        opened = {event.connection for event in events} - {event.connection for event in events if event.reason}
        gateways.append(opened.pop() & GATEWAY_BITS)
        assert not opened
        assert len(gateways) < 50
    assert (await device.request(type="get_device", id=1))["type"] == "ok"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await device.frames.get()
