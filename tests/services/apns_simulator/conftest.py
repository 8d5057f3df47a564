"""A running simulator of Apple's service."""

from collections.abc import AsyncIterator

import pytest

from services.apns_simulator.server import ApnsSimulator
from testkit.delivery.apns import running_simulator


@pytest.fixture
async def simulator() -> AsyncIterator[ApnsSimulator]:
    async with running_simulator() as simulator:
        yield simulator
