"""A message of an absent phone: claimed, posted to HMS with the app's credentials, and each documented answer."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from protos.delivery.v1.delivery_pb2 import CheckChannelRequest, OutcomeKind
from protos.delivery.v1.delivery_pb2_grpc import ChannelsServiceStub
from protos.registry.v1.apps_pb2 import CHANNEL_HMS, PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import RegisterDevice, SetAddress
from protos.registry.v1.registry_pb2 import ChannelChange, CreateAppRequest, GetDevicesRequest, UpdateAppRequest
from services.delivery.channels.batches.answers import OWN_CODES, AnswerAction
from services.delivery.channels.hms.responses import CODES
from services.domain.recorded_reasons import FixedReason
from services.hms_simulator.server import HmsSimulator
from services.process.metrics import CHANNEL_ANSWERS
from testkit.apns.keys import files_containing
from testkit.delivery.hms import CLIENT
from testkit.delivery.records import FAILED, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.services import running_services
from tests.services.delivery.channels.webpush.test_service import WebPushHarness, assert_only_the_registry_keeps

CLAIMED, RETURNED = OutcomeKind.OUTCOME_KIND_CLAIMED, OutcomeKind.OUTCOME_KIND_RETURNED
HANDED_OVER = OutcomeKind.OUTCOME_KIND_HANDED_OVER
PHONE = "IQAAAACy0tMAAAB"


class Phone(NamedTuple):
    """A phone as the registry knows it; `address` scripts Huawei's answers."""

    address: str
    device: NumberedDevice


class HmsHarness(WebPushHarness):
    """Delivery, targeting and registry with one app whose messages go to a simulator in the test."""

    def __init__(self, delivery: DeliveryHarness) -> None:
        super().__init__(delivery)
        self.huawei = HmsSimulator(delivery.clock)
        self.huawei.clients.register(CLIENT)

    async def phone(self, address: str) -> Phone:
        token = f"phone-{address}"
        await self._append(token, register=RegisterDevice(platform=PLATFORM_ANDROID))
        await self._append(token, set_address=SetAddress(channel=CHANNEL_HMS, address=address))
        (found,) = (await self.registry.GetDevices(GetDevicesRequest(appkey=self.app.appkey, tokens=[token]))).devices
        return Phone(address, NumberedDevice(found.partition, found.number))

    async def send_to(self, *phones: Phone, **changes: Any) -> int:
        return await self.delivery.send(*(phone.device for phone in phones), appkey=self.app.appkey, **changes)

    async def _create_app(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_ANDROID, name="Weather", package="org.example.weather")
        appkey = (await self.registry.CreateApp(request)).app.appkey
        fields = {
            "client_id": CLIENT.client_id,
            "client_secret": f"{CLIENT.client_secret}\n",
            "project_id": CLIENT.project_id,
        }
        change = UpdateAppRequest(appkey=appkey, channels=[ChannelChange(channel=CHANNEL_HMS, fields=fields)])
        self.app = (await self.registry.UpdateApp(change)).app


@pytest.fixture
async def hms(delivery: DeliveryHarness, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HmsHarness]:
    harness = HmsHarness(delivery)
    async with running_services([harness.huawei]):
        authority = Path(tmp_path_factory.mktemp("authority")) / "authority.pem"
        authority.write_text(harness.huawei.authority)
        delivery.settings = msgspec.structs.replace(
            delivery.settings,
            webpush="internet",
            hms_url=harness.huawei.url,
            hms_token_url=harness.huawei.token_url,
            hms_authority=str(authority),
        )
        yield harness


async def test_a_message_is_handed_over_once_the_phones_were_absent_for_the_grace(
    hms: HmsHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    async with hms.running():
        phones = [await hms.phone(f"{PHONE}{number}") for number in range(5)]
        await hms.delivery.advance(20)
        msgid = await hms.send_to(*phones)
        await hms.advance_until(lambda: len(hms.huawei.received) == 5)
        rows = [OutcomeRow(msgid, phone.device, kind) for kind in (CLAIMED, HANDED_OVER) for phone in phones]
        await hms.delivery.expect_outcomes(*rows)
        assert {received.message.android.notification is not None for received in hms.huawei.received} == {True}
        checks = ChannelsServiceStub(hms.delivery.server.channel())
        answer = await checks.CheckChannel(CheckChannelRequest(appkey=hms.app.appkey, channel=CHANNEL_HMS))
        assert (answer.accepted, answer.simulated) == (True, False)
        assert (await hms.simulators())[0] == []
    said = "".join(capfd.readouterr())
    assert CLIENT.client_secret not in said
    assert files_containing(hms.delivery.directory, [CLIENT.client_secret.encode()]) == []
    assert_only_the_registry_keeps([PHONE.encode()], hms.delivery.directory, said.encode())


async def test_what_the_simulator_takes_stays_in_the_process_and_is_told(delivery: DeliveryHarness) -> None:
    delivery.settings = msgspec.structs.replace(delivery.settings, hms_url=None, webpush="internet")
    hms = HmsHarness(delivery)
    async with hms.running():
        phone = await hms.phone(PHONE)
        await delivery.advance(20)
        msgid = await hms.send_to(phone)
        (simulator,) = [service for service in delivery.role.services if isinstance(service, HmsSimulator)]
        await hms.advance_until(lambda: len(simulator.received) == 1)
        await delivery.expect_outcomes(
            OutcomeRow(msgid, phone.device, CLAIMED), OutcomeRow(msgid, phone.device, HANDED_OVER)
        )
        assert await hms.simulators() == ([CHANNEL_HMS], [[CHANNEL_HMS], [CHANNEL_HMS]])
        checks = ChannelsServiceStub(delivery.server.channel())
        answer = await checks.CheckChannel(CheckChannelRequest(appkey=hms.app.appkey, channel=CHANNEL_HMS))
        assert (answer.accepted, answer.simulated) == (True, True)


REFUSALS = {
    AnswerAction.FAIL: 1,
    AnswerAction.SPLIT: 1,
    AnswerAction.REMOVE: 1,
    AnswerAction.STOP_APP: 1,
    AnswerAction.RENEW_TOKEN: 2,
    AnswerAction.LOWER: 2,
}
"""The actions by which a message goes back to the device's own connection, after so many requests."""

OF_MESSAGES = [code for code in CODES if code not in ("80000000", "80100000", *OWN_CODES)]


@pytest.mark.parametrize("code", OF_MESSAGES)
async def test_what_follows_from_each_documented_answer(hms: HmsHarness, code: str) -> None:
    """A refused message goes back, also while the app is stopped; any other is requested again until it expires."""
    address, action, reason = f"{code}:x", CODES[code].action, f"{code} {CODES[code].words}"
    counter = CHANNEL_ANSWERS.labels("hms", reason)
    before = counter._value.get()
    async with hms.running():
        phone = await hms.phone(address)
        await hms.delivery.advance(20)
        msgid = await hms.send_to(phone, period_s=600)
        requests = REFUSALS.get(action, 2)
        await hms.advance_until(lambda: counter._value.get() == before + requests)
        if action in REFUSALS:
            await hms.delivery.advance(1)
            await hms.delivery.expect_outcomes(OutcomeRow(msgid, phone.device, RETURNED, reason))
        else:
            assert await hms.delivery.outcomes(FAILED, RETURNED, HANDED_OVER) == []
        await hms.wait_commands_applied()
        is_dead = action is AnswerAction.REMOVE
        assert await hms.dead() == ([(f"phone-{address}", reason)] if is_dead else [])
    assert (hms.huawei.requests, len(hms.huawei.received)) == (requests, 0)


async def test_of_some_phones_only_the_dead_address_goes(hms: HmsHarness) -> None:
    async with hms.running():
        gone = await hms.phone("80100000:x")
        numbers = itertools.count()
        while (alive := await hms.phone(f"{PHONE}{next(numbers)}")).device.partition != gone.device.partition:
            pass  # messages of one partition are claimed together, and so share a request
        await hms.delivery.advance(20)
        msgid = await hms.send_to(alive, gone)
        await hms.advance_until(lambda: len(hms.huawei.received) == 1)
        await hms.delivery.expect_outcomes(
            OutcomeRow(msgid, alive.device, HANDED_OVER),
            OutcomeRow(msgid, gone.device, RETURNED, "80100000 invalid token"),
        )
        await hms.wait_commands_applied()
        assert await hms.dead() == [("phone-80100000:x", "80100000 invalid token")]


async def test_while_huawei_wants_no_requests_phones_that_come_back_get_their_messages(hms: HmsHarness) -> None:
    hms.huawei.retry_after = "86400"
    async with hms.running(), hms.delivery.gateway() as gateway:
        refused, queued = await hms.phone("once-503:x"), await hms.phone(PHONE)
        await hms.delivery.advance(20)
        await hms.send_to(refused, period_s=2 * 86_400)
        await hms.advance_until(lambda: hms.huawei.requests == 1)
        msgid = await hms.send_to(queued, period_s=3600)
        await hms.delivery.advance(20)
        gateway.connect((1, queued.device), appkey=hms.app.appkey)
        await gateway.expect((1, msgid))
        recalled = OutcomeRow(msgid, queued.device, RETURNED, FixedReason.RECALLED)
        assert await hms.delivery.outcomes(RETURNED) == [recalled]
        assert (hms.huawei.requests, list(hms.huawei.received)) == (1, [])


@pytest.mark.parametrize("address", ["once-cut:x", "once-lost:x", "once-503:x", "once-80200003:x", "once-81000001:x"])
async def test_a_repeated_request_is_accepted_and_shown_once(hms: HmsHarness, address: str) -> None:
    async with hms.running():
        phone = await hms.phone(address)
        await hms.delivery.advance(20)
        msgid = await hms.send_to(phone)
        await hms.advance_until(lambda: hms.huawei.requests == 2)
        await hms.delivery.advance(1)
        await hms.delivery.expect_outcomes(OutcomeRow(msgid, phone.device, HANDED_OVER))
        assert list(hms.huawei.shown(address)) == [f"carillon-{msgid}"]


async def test_a_killed_delivery_repeats_the_request_and_the_phone_shows_one(hms: HmsHarness) -> None:
    async with hms.running():
        phone = await hms.phone("once-silence:x")
        await hms.delivery.advance(20)
        msgid = await hms.send_to(phone)
        await hms.advance_until(lambda: hms.huawei.requests == 1)
    async with hms.running():
        await hms.advance_until(lambda: len(hms.huawei.received) == 1)
        await hms.delivery.expect_outcomes(OutcomeRow(msgid, phone.device, HANDED_OVER))


async def test_neither_a_replay_nor_a_start_asks_huawei_again(hms: HmsHarness) -> None:
    """What was handed over is requested no more; of a request without an answer a replay makes none."""
    async with hms.running():
        taken, silent = await hms.phone(PHONE), await hms.phone("silence:x")
        await hms.delivery.advance(20)
        msgid = await hms.send_to(taken)
        await hms.advance_until(lambda: len(hms.huawei.received) == 1)
        await hms.delivery.expect_outcomes(OutcomeRow(msgid, taken.device, HANDED_OVER))
    await hms.expect_no_requests(lambda: hms.huawei.requests, at_start=True)
    async with hms.running():
        await hms.delivery.advance(20)
        await hms.send_to(silent)
        await hms.advance_until(lambda: hms.huawei.requests == 2)
    await hms.expect_no_requests(lambda: hms.huawei.requests, at_start=False)
