"""Phones with addresses at three vendors, each of which answers in its own way: no message is shown twice."""

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import RegisterDevice, SetAddress
from protos.registry.v1.registry_pb2 import ChannelChange, CreateAppRequest, GetDevicesRequest, UpdateAppRequest
from services.domain.addresses import named_channel
from testkit.delivery.records import NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.delivery.vendors import VENDORS
from testkit.services import running_services
from tests.services.delivery.channels.webpush.test_service import WebPushHarness

NAMES = ("xiaomi", "oppo", "vivo")
REFUSALS = {"xiaomi": "65003", "oppo": "31", "vivo": "invalid3"}
WAYS = ("", "refused", "once-cut", "once-lost")


class ThreeVendors(WebPushHarness):
    """Delivery, targeting and registry with one app that has credentials at three vendors."""

    def __init__(self, delivery: DeliveryHarness) -> None:
        super().__init__(delivery)
        self.vendors: dict[str, Any] = {name: VENDORS[name].simulator(delivery.clock) for name in NAMES}
        for name, simulator in self.vendors.items():
            simulator.register(VENDORS[name].app)

    async def phone(self, ways: tuple[str, ...]) -> NumberedDevice:
        token = "-".join(ways)
        await self._append(token, register=RegisterDevice(platform=PLATFORM_ANDROID))
        for name, address in addresses_of(ways).items():
            await self._append(token, set_address=SetAddress(channel=named_channel(name), address=address))
        (found,) = (await self.registry.GetDevices(GetDevicesRequest(appkey=self.app.appkey, tokens=[token]))).devices
        return NumberedDevice(found.partition, found.number)

    async def _create_app(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_ANDROID, name="Weather", package="org.example.weather")
        appkey = (await self.registry.CreateApp(request)).app.appkey
        changes = [ChannelChange(channel=named_channel(name), fields=VENDORS[name].fields) for name in NAMES]
        self.app = (await self.registry.UpdateApp(UpdateAppRequest(appkey=appkey, channels=changes))).app


def addresses_of(ways: tuple[str, ...]) -> dict[str, str]:
    """Return the addresses of a phone, which script how each vendor answers."""
    scripts = {name: REFUSALS[name] if way == "refused" else way for name, way in zip(NAMES, ways, strict=True)}
    return {name: f"{script}:{'.'.join(ways)}" for name, script in scripts.items()}


@pytest.fixture
async def three(delivery: DeliveryHarness, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ThreeVendors]:
    harness = ThreeVendors(delivery)
    async with running_services(list(harness.vendors.values())):
        settings: dict[str, str] = {}
        for name, simulator in harness.vendors.items():
            authority = Path(tmp_path_factory.mktemp("authority")) / "authority.pem"
            authority.write_text(simulator.authority)
            settings |= {**VENDORS[name].settings(simulator), f"{name}_authority": str(authority)}
        delivery.settings = msgspec.structs.replace(delivery.settings, webpush="internet", **settings)
        yield harness


async def test_no_message_is_shown_by_two_vendors(three: ThreeVendors) -> None:
    """Each way of answering of each vendor with each of the others."""
    everyone = list(product(WAYS, repeat=3))
    async with three.running():
        phones = [await three.phone(ways) for ways in everyone]
        await three.delivery.advance(20)
        for phone in phones:  # a push each, because phones of one push share requests
            await three.delivery.send(phone, appkey=three.app.appkey)

        def shown(ways: tuple[str, ...]) -> list[str]:
            return [name for name, at in addresses_of(ways).items() for _ in three.vendors[name].shown(at)]

        await three.advance_until(lambda: sum(bool(shown(ways)) for ways in everyone) == len(everyone) - len(WAYS))
        await three.delivery.advance(120)
        for ways in everyone:
            found = shown(ways)
            assert len(found) == (0 if ways[:2] == ("refused", "refused") else 1), (ways, found)
