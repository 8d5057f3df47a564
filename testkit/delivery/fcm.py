"""FCM's channel for one app: its sender, connected to a simulator, behind the queue of all push services."""

import contextlib
import json
from collections.abc import AsyncIterator

from services.delivery.channels.fcm.sender import FcmEndpoint, FcmSenderPool
from services.delivery.channels.fcm.service import FcmService
from services.domain.channel_credentials.fcm import ServiceAccount
from services.fcm_simulator.accounts import new_account
from services.fcm_simulator.server import FcmSimulator
from services.process.clock import ManualClock
from testkit.delivery.channel import APP, MSGID, START_MS, ChannelHarness
from testkit.services import running_services

__all__ = ["ACCOUNT", "APP", "MSGID", "PROJECT", "START_MS", "FcmHarness", "account_file", "endpoint_of", "running_fcm"]

PROJECT = "weather-1"
ACCOUNT = new_account(PROJECT)


def account_file(account: ServiceAccount) -> bytes:
    """Return the JSON file of an account, as Google's console gives it."""
    names = ("project_id", "private_key_id", "private_key", "client_email", "token_uri")
    fields = {name: getattr(account, name) for name in names}
    return json.dumps({"type": "service_account", **fields, "universe_domain": "googleapis.com"}).encode()


def endpoint_of(simulator: FcmSimulator) -> FcmEndpoint:
    return FcmEndpoint(simulator.url, f"{simulator.url}/token", simulator.authority)


class FcmHarness(ChannelHarness):
    """The channel, its simulator, and the app's account."""

    def __init__(self, simulator: FcmSimulator, clock: ManualClock) -> None:
        self.simulator = simulator
        self.account: ServiceAccount | None = ACCOUNT
        self.service = FcmService(lambda: FcmSenderPool(endpoint_of(simulator), clock), lambda app: self.account, clock)
        super().__init__(self.service, clock)


@contextlib.asynccontextmanager
async def running_fcm() -> AsyncIterator[FcmHarness]:
    """Run a channel and a simulator that knows its app's account."""
    clock = ManualClock(START_MS)
    simulator = FcmSimulator(clock)
    simulator.accounts.register(ACCOUNT)
    async with running_services([simulator]):
        harness = FcmHarness(simulator, clock)
        async with harness.running():
            yield harness
