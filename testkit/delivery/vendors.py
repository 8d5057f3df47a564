"""The makers of phones whose services differ in their calls alone: for one app, with a simulator of each."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

from protos.registry.v1.apps_pb2 import App
from services.delivery.channels.batches.answers import AnswerCode
from services.delivery.channels.batches.service import VendorService
from services.delivery.channels.honor import responses as honor_responses
from services.delivery.channels.honor.service import HonorEndpoint, honor_service
from services.delivery.channels.oppo import responses as oppo_responses
from services.delivery.channels.oppo.service import OppoEndpoint, oppo_service
from services.delivery.channels.vivo import responses as vivo_responses
from services.delivery.channels.vivo.service import VivoEndpoint, vivo_service
from services.delivery.channels.xiaomi import responses as xiaomi_responses
from services.delivery.channels.xiaomi.service import XiaomiEndpoint, xiaomi_service
from services.domain.channel_credentials.honor import HonorCredentials
from services.domain.channel_credentials.oppo import OppoCredentials
from services.domain.channel_credentials.vivo import VivoCredentials
from services.domain.channel_credentials.xiaomi import XiaomiCredentials
from services.honor_simulator.server import HonorApp, HonorSimulator
from services.oppo_simulator.server import OppoApp, OppoSimulator
from services.process.clock import Clock, ManualClock
from services.push_simulator.http1_service import Http1SimulatedService
from services.vivo_simulator.server import VivoApp, VivoSimulator
from services.xiaomi_simulator.server import XiaomiApp, XiaomiSimulator
from testkit.delivery.channel import START_MS, ChannelHarness
from testkit.services import running_services

SECRET = "canary-secret-of-a-vendor"  # of tests alone

AnyService = VendorService[Any, Any]
AccountOf = Callable[[App], Any]


class VendorCase(NamedTuple):
    """A vendor in tests. `app`: as its simulator knows it. `account`, `fields`: as the app has it, and people set it.

    `scripts`: the beginning of an address whose answer is a code, for codes that are no script themselves.
    `settings`: the settings by which delivery sends to a simulator at a URL.
    """

    simulator: Callable[[Clock], Any]
    app: Any
    account: Any
    fields: Mapping[str, str]
    service: Callable[[Any, AccountOf, Clock], AnyService]
    codes: Mapping[str, AnswerCode]
    settings: Callable[[Any], Mapping[str, str]]
    scripts: Mapping[str, str] = {}


def _honor(simulator: HonorSimulator, account_of: AccountOf, clock: Clock) -> AnyService:
    return honor_service(
        lambda: HonorEndpoint(simulator.url, simulator.token_url, simulator.authority), account_of, clock
    )


def _xiaomi(simulator: XiaomiSimulator, account_of: AccountOf, clock: Clock) -> AnyService:
    return xiaomi_service(lambda: XiaomiEndpoint(simulator.url, simulator.authority), account_of, clock)


def _oppo(simulator: OppoSimulator, account_of: AccountOf, clock: Clock) -> AnyService:
    return oppo_service(lambda: OppoEndpoint(simulator.url, simulator.authority), account_of, clock)


def _vivo(simulator: VivoSimulator, account_of: AccountOf, clock: Clock) -> AnyService:
    return vivo_service(lambda: VivoEndpoint(simulator.url, simulator.authority), account_of, clock)


VENDORS: Mapping[str, VendorCase] = {
    "honor": VendorCase(
        HonorSimulator,
        HonorApp("104562917", "220099", SECRET),
        HonorCredentials("104562917", "220099", SECRET),
        {"app_id": "104562917", "client_id": "220099", "client_secret": SECRET},
        _honor,
        honor_responses.CODES,
        lambda simulator: {"honor_url": simulator.url, "honor_token_url": simulator.token_url},
        {"expireTokens": "expired", "failTokens": "fail"},
    ),
    "xiaomi": VendorCase(
        XiaomiSimulator,
        XiaomiApp("org.example.weather", SECRET),
        XiaomiCredentials("org.example.weather", SECRET, {"MARKETING": "104234", "IM": "104235"}),
        {"package": "org.example.weather", "app_secret": SECRET, "channels": "MARKETING=104234,IM=104235"},
        _xiaomi,
        xiaomi_responses.CODES,
        lambda simulator: {"xiaomi_url": simulator.url},
    ),
    "oppo": VendorCase(
        OppoSimulator,
        OppoApp("c5c8aa64", SECRET),
        OppoCredentials("c5c8aa64", SECRET, frozenset(("IM", "ORDER")), {"IM": "chat"}),
        {"app_key": "c5c8aa64", "master_secret": SECRET, "categories": "IM,ORDER", "channels": "IM=chat"},
        _oppo,
        oppo_responses.CODES,
        lambda simulator: {"oppo_url": simulator.url},
        {"registration_id": "10000"},
    ),
    "vivo": VendorCase(
        VivoSimulator,
        VivoApp("10004", "25509283-3767", SECRET),
        VivoCredentials("10004", "25509283-3767", SECRET, frozenset(("IM", "ORDER"))),
        {"app_id": "10004", "app_key": "25509283-3767", "app_secret": SECRET, "categories": "IM,ORDER"},
        _vivo,
        vivo_responses.CODES,
        lambda simulator: {"vivo_url": simulator.url},
        {f"status {number}": f"invalid{number}" for number in range(1, 5)},
    ),
}


class VendorHarness(ChannelHarness):
    """The channel, its simulator, and the app's credentials."""

    def __init__(self, name: str, simulator: Http1SimulatedService[Any], clock: ManualClock) -> None:
        self.case = VENDORS[name]
        self.simulator: Any = simulator
        self.account: Any = self.case.account
        self.service = self.case.service(simulator, lambda app: self.account, clock)
        super().__init__(self.service, clock)


@contextlib.asynccontextmanager
async def running_vendor(name: str) -> AsyncIterator[VendorHarness]:
    """Run a channel and a simulator that knows its app."""
    clock = ManualClock(START_MS)
    simulator = VENDORS[name].simulator(clock)
    simulator.register(VENDORS[name].app)
    async with running_services([simulator]):
        harness = VendorHarness(name, simulator, clock)
        async with harness.running():
            yield harness
