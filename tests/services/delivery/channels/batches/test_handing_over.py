"""A message of an absent phone: claimed, posted to its vendor with the app's credentials, and what people see."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protos.delivery.v1.delivery_pb2 import CheckChannelRequest, OutcomeKind
from protos.delivery.v1.delivery_pb2_grpc import ChannelsServiceStub
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import RegisterDevice, SetAddress
from protos.registry.v1.registry_pb2 import ChannelChange, CreateAppRequest, GetDevicesRequest, UpdateAppRequest
from services.domain.addresses import named_channel
from services.push_simulator.http1_service import Http1SimulatedService
from testkit.apns.keys import files_containing
from testkit.delivery.records import NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.delivery.vendors import SECRET, VENDORS
from testkit.services import running_services
from tests.services.delivery.channels.webpush.test_service import WebPushHarness, assert_only_the_registry_keeps

CLAIMED, RETURNED = OutcomeKind.OUTCOME_KIND_CLAIMED, OutcomeKind.OUTCOME_KIND_RETURNED
HANDED_OVER = OutcomeKind.OUTCOME_KIND_HANDED_OVER
PHONE = "CN_8fa0618f178145d8c2a44091a1326411"


class VendorsHarness(WebPushHarness):
    """Delivery, targeting and registry with one app whose messages go to a simulator in the test."""

    def __init__(self, delivery: DeliveryHarness, name: str) -> None:
        super().__init__(delivery)
        self.channel = named_channel(name)
        self.case = VENDORS[name]
        self.vendor: Any = self.case.simulator(delivery.clock)
        self.vendor.register(self.case.app)

    async def phone(self, address: str) -> NumberedDevice:
        token = f"phone-{address}"
        await self._append(token, register=RegisterDevice(platform=PLATFORM_ANDROID))
        await self._append(token, set_address=SetAddress(channel=self.channel, address=address))
        (found,) = (await self.registry.GetDevices(GetDevicesRequest(appkey=self.app.appkey, tokens=[token]))).devices
        return NumberedDevice(found.partition, found.number)

    async def send_to(self, *phones: NumberedDevice, **changes: Any) -> int:
        return await self.delivery.send(*phones, appkey=self.app.appkey, **changes)

    async def _create_app(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_ANDROID, name="Weather", package="org.example.weather")
        appkey = (await self.registry.CreateApp(request)).app.appkey
        change = ChannelChange(channel=self.channel, fields=self.case.fields)
        self.app = (await self.registry.UpdateApp(UpdateAppRequest(appkey=appkey, channels=[change]))).app


@pytest.fixture
async def vendor(
    request: pytest.FixtureRequest, delivery: DeliveryHarness, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VendorsHarness]:
    name = request.param
    harness = VendorsHarness(delivery, name)
    async with running_services([harness.vendor]):
        authority = Path(tmp_path_factory.mktemp("authority")) / "authority.pem"
        authority.write_text(harness.vendor.authority)
        settings = {**harness.case.settings(harness.vendor), f"{name}_authority": str(authority)}
        delivery.settings = msgspec.structs.replace(delivery.settings, webpush="internet", **settings)
        yield harness


@pytest.mark.parametrize("vendor", VENDORS, indirect=True)
async def test_messages_are_handed_over_and_no_replay_asks_the_vendor_again(
    vendor: VendorsHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    async with vendor.running():
        phone = await vendor.phone(PHONE)
        await vendor.delivery.advance(20)
        msgid = await vendor.send_to(phone)
        await vendor.advance_until(lambda: len(vendor.vendor.received) == 1)
        await vendor.delivery.expect_outcomes(OutcomeRow(msgid, phone, HANDED_OVER))
        checks = ChannelsServiceStub(vendor.delivery.server.channel())
        answer = await checks.CheckChannel(CheckChannelRequest(appkey=vendor.app.appkey, channel=vendor.channel))
        assert (answer.accepted, answer.simulated) == (True, False)
        assert (await vendor.simulators())[0] == []
    await vendor.expect_no_requests(lambda: vendor.vendor.requests, at_start=True)
    said = "".join(capfd.readouterr())
    assert SECRET not in said
    assert files_containing(vendor.delivery.directory, [SECRET.encode()]) == []
    assert_only_the_registry_keeps([PHONE.encode()], vendor.delivery.directory, said.encode())


@pytest.mark.parametrize("vendor", VENDORS, indirect=True)
async def test_a_killed_delivery_repeats_the_request_and_the_phone_shows_one(vendor: VendorsHarness) -> None:
    async with vendor.running():
        phone = await vendor.phone("once-silence:x")
        await vendor.delivery.advance(20)
        msgid = await vendor.send_to(phone)
        await vendor.advance_until(lambda: vendor.vendor.requests == 1)
    async with vendor.running():
        await vendor.advance_until(lambda: len(vendor.vendor.received) == 1)
        await vendor.delivery.expect_outcomes(OutcomeRow(msgid, phone, HANDED_OVER))
        assert len(vendor.vendor.shown("once-silence:x")) == 1


@pytest.mark.parametrize("name", VENDORS)
async def test_what_a_simulator_takes_stays_in_the_process_and_is_told(delivery: DeliveryHarness, name: str) -> None:
    delivery.settings = msgspec.structs.replace(delivery.settings, webpush="internet", **{f"{name}_url": None})
    vendor = VendorsHarness(delivery, name)
    async with vendor.running():
        phone = await vendor.phone(PHONE)
        await delivery.advance(20)
        msgid = await vendor.send_to(phone)
        (simulator,) = [
            service
            for service in delivery.role.services
            if isinstance(service, Http1SimulatedService) and service.name == f"{name}-simulator"
        ]
        await vendor.advance_until(lambda: len(simulator.received) == 1)
        await delivery.expect_outcomes(OutcomeRow(msgid, phone, CLAIMED), OutcomeRow(msgid, phone, HANDED_OVER))
        assert await vendor.simulators() == ([vendor.channel], [[vendor.channel], [vendor.channel]])


@pytest.mark.parametrize("vendor", ["xiaomi"], indirect=True)
async def test_a_message_goes_back_while_the_quota_of_the_day_is_used_up(vendor: VendorsHarness) -> None:
    async with vendor.running():
        refused, other = await vendor.phone("200001:x"), await vendor.phone(PHONE)
        await vendor.delivery.advance(20)
        first = await vendor.send_to(refused)
        await vendor.delivery.expect_outcomes(OutcomeRow(first, refused, RETURNED, "200001 daily limit"))
        second = await vendor.send_to(other)
        await vendor.delivery.expect_outcomes(
            OutcomeRow(first, refused, RETURNED, "200001 daily limit"),
            OutcomeRow(second, other, RETURNED, "200001 daily limit"),
        )
        assert vendor.vendor.requests == 1
