"""HMS for one app: its sender, connected to a simulator, behind the queue of all push services."""

import contextlib
from collections.abc import AsyncIterator

from services.delivery.channels.hms.service import HmsEndpoint, hms_service
from services.domain.channel_credentials.hms import HmsCredentials
from services.hms_simulator.server import HmsSimulator
from services.process.clock import ManualClock
from testkit.delivery.channel import START_MS, ChannelHarness
from testkit.services import running_services

CLIENT = HmsCredentials("104520345", "canary-secret-of-huawei", "388421841")


def endpoint_of(simulator: HmsSimulator) -> HmsEndpoint:
    return HmsEndpoint(simulator.url, simulator.token_url, simulator.authority)


class HmsHarness(ChannelHarness):
    """The channel, its simulator, and the app's credentials."""

    def __init__(self, simulator: HmsSimulator, clock: ManualClock) -> None:
        self.simulator = simulator
        self.client: HmsCredentials | None = CLIENT
        self.service = hms_service(lambda: endpoint_of(simulator), lambda app: self.client, clock)
        super().__init__(self.service, clock)


@contextlib.asynccontextmanager
async def running_hms() -> AsyncIterator[HmsHarness]:
    """Run a channel and a simulator that knows its app's client."""
    clock = ManualClock(START_MS)
    simulator = HmsSimulator(clock)
    simulator.clients.register(CLIENT)
    async with running_services([simulator]):
        harness = HmsHarness(simulator, clock)
        async with harness.running():
            yield harness
