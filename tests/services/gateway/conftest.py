"""Fixtures: gateways on real sockets, with a manual clock and a scripted delivery service."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from services.gateway.settings import GatewaySettings
from testkit.gateway.role import PARTITIONS, RunningGateway

StartGateway = Callable[..., Awaitable[RunningGateway]]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on uvloop, as the gateway runs."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start_gateway(tmp_path: Path) -> AsyncIterator[StartGateway]:
    """Starts a gateway with the given settings; all others have their defaults."""
    gateways: list[RunningGateway] = []

    async def start(**settings: Any) -> RunningGateway:
        gateway = RunningGateway(tmp_path, GatewaySettings(partitions=PARTITIONS, gateway_port=0, **settings))
        gateways.append(gateway)
        await gateway.open()
        return gateway

    yield start
    for gateway in gateways:
        await gateway.close()


@pytest.fixture
async def gateway(start_gateway: StartGateway) -> RunningGateway:
    return await start_gateway()
