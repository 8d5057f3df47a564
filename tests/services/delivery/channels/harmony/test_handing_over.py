"""A message of an absent phone: claimed, posted to HarmonyOS's call with the app's account, and what people see."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protos.delivery.v1.delivery_pb2 import CheckChannelRequest, OutcomeKind
from protos.delivery.v1.delivery_pb2_grpc import ChannelsServiceStub
from protos.registry.v1.apps_pb2 import CHANNEL_HARMONY, PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import RegisterDevice, SetAddress
from protos.registry.v1.registry_pb2 import ChannelChange, CreateAppRequest, GetDevicesRequest, UpdateAppRequest
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.hms_simulator.harmony import HarmonySimulator
from testkit.apns.keys import files_containing
from testkit.delivery.records import NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.services import running_services
from tests.services.delivery.channels.webpush.test_service import WebPushHarness, assert_only_the_registry_keeps

CLAIMED, RETURNED = OutcomeKind.OUTCOME_KIND_CLAIMED, OutcomeKind.OUTCOME_KIND_RETURNED
HANDED_OVER = OutcomeKind.OUTCOME_KIND_HANDED_OVER
PHONE = "MAMzLgIkEUWTUCTA0tM"


class HarmonyHarness(WebPushHarness):
    """Delivery, targeting and registry with one app whose messages go to a simulator in the test."""

    def __init__(self, delivery: DeliveryHarness, account: HarmonyAccount) -> None:
        super().__init__(delivery)
        self.account = account
        self.huawei = HarmonySimulator(delivery.clock)
        self.huawei.register(account)

    async def phone(self, address: str) -> NumberedDevice:
        token = f"phone-{address}"
        await self._append(token, register=RegisterDevice(platform=PLATFORM_ANDROID))
        await self._append(token, set_address=SetAddress(channel=CHANNEL_HARMONY, address=address))
        (found,) = (await self.registry.GetDevices(GetDevicesRequest(appkey=self.app.appkey, tokens=[token]))).devices
        return NumberedDevice(found.partition, found.number)

    async def send_to(self, *phones: NumberedDevice, **changes: Any) -> int:
        return await self.delivery.send(*phones, appkey=self.app.appkey, **changes)

    async def _create_app(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_ANDROID, name="Weather", package="org.example.weather")
        appkey = (await self.registry.CreateApp(request)).app.appkey
        file = {
            "project_id": self.account.project_id,
            "key_id": self.account.key_id,
            "private_key": self.account.private_key,
            "sub_account": self.account.sub_account,
        }
        fields = {"service_account": json.dumps(file)}
        change = UpdateAppRequest(appkey=appkey, channels=[ChannelChange(channel=CHANNEL_HARMONY, fields=fields)])
        self.app = (await self.registry.UpdateApp(change)).app


@pytest.fixture
async def harmony(
    delivery: DeliveryHarness, account: HarmonyAccount, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HarmonyHarness]:
    harness = HarmonyHarness(delivery, account)
    async with running_services([harness.huawei]):
        authority = Path(tmp_path_factory.mktemp("authority")) / "authority.pem"
        authority.write_text(harness.huawei.authority)
        delivery.settings = msgspec.structs.replace(
            delivery.settings,
            webpush="internet",
            harmony_url=harness.huawei.url,
            harmony_authority=str(authority),
        )
        yield harness


async def test_messages_are_handed_over_and_refused_ones_go_back(
    harmony: HarmonyHarness, account: HarmonyAccount, capfd: pytest.CaptureFixture[str]
) -> None:
    async with harmony.running():
        alive, gone, abroad = [await harmony.phone(each) for each in (PHONE, "noRight:x", "countryNotSupport:x")]
        await harmony.delivery.advance(20)
        msgid = await harmony.send_to(alive, gone, abroad)
        await harmony.advance_until(lambda: len(harmony.huawei.received) == 1)
        await harmony.delivery.expect_outcomes(
            OutcomeRow(msgid, alive, HANDED_OVER),
            OutcomeRow(msgid, gone, RETURNED, "noRight"),
            OutcomeRow(msgid, abroad, RETURNED, "countryNotSupport"),
        )
        await harmony.wait_commands_applied()
        assert await harmony.dead() == [("phone-noRight:x", "noRight")]
        checks = ChannelsServiceStub(harmony.delivery.server.channel())
        answer = await checks.CheckChannel(CheckChannelRequest(appkey=harmony.app.appkey, channel=CHANNEL_HARMONY))
        assert (answer.accepted, answer.simulated) == (True, False)
        assert (await harmony.simulators())[0] == []
    line = account.private_key.split("\n")[1]
    said = "".join(capfd.readouterr())
    assert line not in said
    assert files_containing(harmony.delivery.directory, [line.encode()]) == []
    assert_only_the_registry_keeps([PHONE.encode(), b"countryNotSupport:x"], harmony.delivery.directory, said.encode())


async def test_what_the_simulator_takes_stays_in_the_process_and_is_told(
    delivery: DeliveryHarness, account: HarmonyAccount
) -> None:
    delivery.settings = msgspec.structs.replace(delivery.settings, harmony_url=None, webpush="internet")
    harmony = HarmonyHarness(delivery, account)
    async with harmony.running():
        phone = await harmony.phone(PHONE)
        await delivery.advance(20)
        msgid = await harmony.send_to(phone)
        (simulator,) = [service for service in delivery.role.services if isinstance(service, HarmonySimulator)]
        await harmony.advance_until(lambda: len(simulator.received) == 1)
        await delivery.expect_outcomes(OutcomeRow(msgid, phone, CLAIMED), OutcomeRow(msgid, phone, HANDED_OVER))
        assert await harmony.simulators() == ([CHANNEL_HARMONY], [[CHANNEL_HARMONY], [CHANNEL_HARMONY]])


@pytest.mark.parametrize("address", ["once-cut:x", "once-lost:x", "once-503:x", "once-80200005:x", "once-81000001:x"])
async def test_a_repeated_request_is_accepted_and_shown_once(harmony: HarmonyHarness, address: str) -> None:
    async with harmony.running():
        phone = await harmony.phone(address)
        await harmony.delivery.advance(20)
        msgid = await harmony.send_to(phone)
        await harmony.advance_until(lambda: harmony.huawei.requests == 2)
        await harmony.delivery.advance(1)
        await harmony.delivery.expect_outcomes(OutcomeRow(msgid, phone, HANDED_OVER))
        assert list(harmony.huawei.shown(address)) == [1 + msgid % (2**31 - 1)]


async def test_a_killed_delivery_repeats_the_request_and_the_phone_shows_one(harmony: HarmonyHarness) -> None:
    async with harmony.running():
        phone = await harmony.phone("once-silence:x")
        await harmony.delivery.advance(20)
        msgid = await harmony.send_to(phone)
        await harmony.advance_until(lambda: harmony.huawei.requests == 1)
    async with harmony.running():
        await harmony.advance_until(lambda: len(harmony.huawei.received) == 1)
        await harmony.delivery.expect_outcomes(OutcomeRow(msgid, phone, HANDED_OVER))


async def test_neither_a_replay_nor_a_start_asks_huawei_again(harmony: HarmonyHarness) -> None:
    """What was handed over is requested no more; of a request without an answer a replay makes none."""
    async with harmony.running():
        taken, silent = await harmony.phone(PHONE), await harmony.phone("silence:x")
        await harmony.delivery.advance(20)
        msgid = await harmony.send_to(taken)
        await harmony.advance_until(lambda: len(harmony.huawei.received) == 1)
        await harmony.delivery.expect_outcomes(OutcomeRow(msgid, taken, HANDED_OVER))
    await harmony.expect_no_requests(lambda: harmony.huawei.requests, at_start=True)
    async with harmony.running():
        await harmony.delivery.advance(20)
        await harmony.send_to(silent)
        await harmony.advance_until(lambda: harmony.huawei.requests == 2)
    await harmony.expect_no_requests(lambda: harmony.huawei.requests, at_start=False)
