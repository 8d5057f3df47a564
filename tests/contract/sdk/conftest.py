"""Fixtures: the real gateway, a scripted one, and each SDK in a process that the test drives."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testkit.edge.scripted_endpoint import ScriptedEndpoint
from testkit.gateway.role import RunningGateway
from testkit.gateway.scripted_gateway import ScriptedGateway
from tests.contract.sdk.driven_device import DrivenDevice, StartDevice
from tests.services.gateway.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
async def real_gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    gateway = RunningGateway(tmp_path)
    await gateway.open()
    yield gateway
    await gateway.close()


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    gateway = ScriptedGateway()
    await gateway.open()
    yield gateway
    await gateway.close()


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint()
    await endpoint.open()
    yield endpoint
    await endpoint.close()


JVM = [pytest.param(name, marks=pytest.mark.long) for name in ("kotlin", "okhttp")]


@pytest.fixture(params=["python", "javascript", *JVM])
async def start_device(
    request: pytest.FixtureRequest, gateway: ScriptedGateway, tmp_path: Path
) -> AsyncIterator[StartDevice]:
    """Starts a device of each SDK at the scripted gateway; its `random` is always 0.5, its clock is the test's."""
    devices: list[DrivenDevice] = []

    async def start(
        url: str | None = None, ca: str | None = None, state: Path = tmp_path / "state.json", **options: object
    ) -> DrivenDevice:
        device = await DrivenDevice.start(request.param, url or gateway.url, str(state), ca, options)
        devices.append(device)
        return device

    yield start
    for device in devices:
        await device.kill()
