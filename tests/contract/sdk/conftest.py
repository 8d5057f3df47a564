"""The real gateway of tests/gateway, a scripted one, and each SDK as a program that the test drives."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.contract.sdk.driven import Driven
from tests.contract.sdk.gateway import ScriptedGateway
from tests.roles.gateway.conftest import House, pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]

Start = Callable[..., Awaitable[Driven]]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    await house.open()
    yield house
    await house.close()


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    gateway = ScriptedGateway()
    await gateway.open()
    yield gateway
    await gateway.close()


@pytest.fixture(params=["python", "javascript"])
async def start(request: pytest.FixtureRequest, gateway: ScriptedGateway, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a device of either SDK at the scripted gateway; its `random` is always 0.5, its waits end when told."""
    if request.param == "javascript" and shutil.which("node") is None:
        pytest.fail("node is not on the path: install Node.js 20 or newer", pytrace=False)
    running: list[Driven] = []

    async def make(url: str | None = None, ca: str | None = None, **options: object) -> Driven:
        state = str(tmp_path / "state.json")
        driven = await Driven.start(request.param, url or gateway.url, state, ca, options)
        running.append(driven)
        return driven

    yield make
    for each in running:
        await each.kill()
