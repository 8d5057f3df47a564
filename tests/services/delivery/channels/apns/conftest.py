"""A running simulator of Apple's service, and a sender connected to it."""

from collections.abc import AsyncIterator

import pytest

from services.apns_simulator.server import ApnsSimulator
from services.delivery.channels.apns.sender import ApnsSender
from testkit.delivery.apns import open_sender, running_simulator


@pytest.fixture
async def simulator() -> AsyncIterator[ApnsSimulator]:
    async with running_simulator() as simulator:
        yield simulator


@pytest.fixture
async def sender(simulator: ApnsSimulator) -> AsyncIterator[ApnsSender]:
    async with open_sender(simulator) as sender:
        yield sender
