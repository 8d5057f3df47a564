"""The fixture of iOS delivery's tests."""

import msgspec
import pytest

from testkit.delivery.ios import IosHarness
from testkit.delivery.role import DeliveryHarness


@pytest.fixture
async def ios(delivery: DeliveryHarness) -> IosHarness:
    """A harness with an iOS app, not running; pushes go to the simulator in delivery."""
    delivery.settings = msgspec.structs.replace(delivery.settings, apns_url=None)
    ios = IosHarness(delivery)
    async with ios.running():
        await ios.create_app()
    return ios
