"""HarmonyOS for one app: its sender, connected to a simulator, behind the queue of all push services."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from services.delivery.channels.harmony.service import HarmonyEndpoint, harmony_service
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.hms_simulator.harmony import HarmonySimulator, new_key
from services.process.clock import ManualClock
from testkit.delivery.channel import START_MS, ChannelHarness
from testkit.services import running_services

_NAMED = HarmonyAccount("388421841", "a6a3c8b1f0", "104520345", "")


def new_account() -> HarmonyAccount:
    """Return an account with a new key."""
    return replace(_NAMED, private_key=new_key())


class HarmonyHarness(ChannelHarness):
    """The channel, its simulator, and the app's account."""

    def __init__(self, simulator: HarmonySimulator, account: HarmonyAccount, clock: ManualClock) -> None:
        self.simulator = simulator
        self.account: HarmonyAccount | None = account
        self.service = harmony_service(
            lambda: HarmonyEndpoint(simulator.url, simulator.authority),
            lambda app: self.account,
            clock,
        )
        super().__init__(self.service, clock)


@contextlib.asynccontextmanager
async def running_harmony(account: HarmonyAccount) -> AsyncIterator[HarmonyHarness]:
    """Run a channel and a simulator that knows its app's account."""
    clock = ManualClock(START_MS)
    simulator = HarmonySimulator(clock)
    simulator.register(account)
    async with running_services([simulator]):
        harness = HarmonyHarness(simulator, account, clock)
        async with harness.running():
            yield harness
