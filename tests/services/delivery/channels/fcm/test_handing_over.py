"""A message of an absent phone: claimed, posted to FCM with the app's service account, and each documented answer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from protos.delivery.v1.delivery_pb2 import CheckChannelRequest, GetAppleStateRequest, OutcomeKind
from protos.delivery.v1.delivery_pb2_grpc import AppleStateServiceStub, ChannelsServiceStub
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_WEBPUSH, PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import RegisterDevice, SetAddress
from protos.registry.v1.registry_pb2 import ChannelChange, CreateAppRequest, GetDevicesRequest, UpdateAppRequest
from services.delivery.channels.fcm.responses import ACCOUNT_REFUSED, HANDLINGS, FcmAction
from services.domain.recorded_reasons import FixedReason
from services.errors import InputError
from services.fcm_simulator.server import FcmSimulator
from services.process.metrics import CHANNEL_ANSWERS
from testkit.apns.keys import canaries, files_containing
from testkit.delivery.fcm import ACCOUNT, account_file
from testkit.delivery.records import FAILED, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.services import running_services
from tests.services.delivery.channels.webpush.test_service import WebPushHarness, assert_only_the_registry_keeps

CLAIMED, RETURNED = OutcomeKind.OUTCOME_KIND_CLAIMED, OutcomeKind.OUTCOME_KIND_RETURNED
HANDED_OVER = OutcomeKind.OUTCOME_KIND_HANDED_OVER


class Phone(NamedTuple):
    """A phone as the registry knows it; `address` scripts Google's answers."""

    address: str
    device: NumberedDevice


class FcmHarness(WebPushHarness):
    """Delivery, targeting and registry with one app whose messages go to a simulator in the test."""

    def __init__(self, delivery: DeliveryHarness) -> None:
        super().__init__(delivery)
        self.google = FcmSimulator(delivery.clock)
        self.google.accounts.register(ACCOUNT)

    async def phone(self, address: str) -> Phone:
        token = f"phone-{address}"
        await self._append(token, register=RegisterDevice(platform=PLATFORM_ANDROID))
        await self._append(token, set_address=SetAddress(channel=CHANNEL_FCM, address=address))
        (found,) = (await self.registry.GetDevices(GetDevicesRequest(appkey=self.app.appkey, tokens=[token]))).devices
        return Phone(address, NumberedDevice(found.partition, found.number))

    async def send_to(self, phone: Phone, **changes: Any) -> int:
        return await self.delivery.send(phone.device, appkey=self.app.appkey, **changes)

    async def _create_app(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_ANDROID, name="Weather", package="org.example.weather")
        appkey = (await self.registry.CreateApp(request)).app.appkey
        account = ChannelChange(channel=CHANNEL_FCM, fields={"service_account": account_file(ACCOUNT).decode()})
        change = UpdateAppRequest(appkey=appkey, channels=[account])
        self.app = (await self.registry.UpdateApp(change)).app


@pytest.fixture
async def fcm(delivery: DeliveryHarness, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FcmHarness]:
    harness = FcmHarness(delivery)
    delivery.settings = msgspec.structs.replace(delivery.settings, webpush="internet")
    async with running_services([harness.google]):
        authority = Path(tmp_path_factory.mktemp("authority")) / "authority.pem"
        authority.write_text(harness.google.authority)
        delivery.settings = msgspec.structs.replace(
            delivery.settings,
            fcm_url=harness.google.url,
            fcm_token_url=f"{harness.google.url}/token",
            fcm_authority=str(authority),
        )
        yield harness


async def test_a_message_is_handed_over_once_the_phone_was_absent_for_the_grace(
    fcm: FcmHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    async with fcm.running():
        phone = await fcm.phone("cXz1y:APA91bH")
        await fcm.delivery.advance(20)
        msgid = await fcm.send_to(phone)
        await fcm.advance_until(lambda: len(fcm.google.received) == 1)
        await fcm.delivery.expect_outcomes(
            OutcomeRow(msgid, phone.device, CLAIMED), OutcomeRow(msgid, phone.device, HANDED_OVER)
        )
        checks = ChannelsServiceStub(fcm.delivery.server.channel())
        answer = await checks.CheckChannel(CheckChannelRequest(appkey=fcm.app.appkey, channel=CHANNEL_FCM))
        assert (answer.accepted, answer.simulated) == (True, False)
        with pytest.raises(InputError, match="channel must be one of fcm"):
            await checks.CheckChannel(CheckChannelRequest(appkey=fcm.app.appkey, channel=CHANNEL_WEBPUSH))
        assert await fcm.simulators() == ([], [[], []])
    words = canaries(ACCOUNT.private_key)
    said = "".join(capfd.readouterr())
    assert not [word for word in words if word.decode() in said]
    assert "ya29." not in said
    assert files_containing(fcm.delivery.directory, words) == []
    assert_only_the_registry_keeps([phone.address.encode()], fcm.delivery.directory, said.encode())


async def test_what_the_simulator_takes_stays_in_the_process_and_is_told(delivery: DeliveryHarness) -> None:
    delivery.settings = msgspec.structs.replace(delivery.settings, fcm_url=None, webpush="internet")
    fcm = FcmHarness(delivery)
    async with fcm.running():
        phone = await fcm.phone("cXz1y:APA91bH")
        await delivery.advance(20)
        msgid = await fcm.send_to(phone)
        (simulator,) = [service for service in delivery.role.services if isinstance(service, FcmSimulator)]
        await fcm.advance_until(lambda: len(simulator.received) == 1)
        await delivery.expect_outcomes(
            OutcomeRow(msgid, phone.device, CLAIMED), OutcomeRow(msgid, phone.device, HANDED_OVER)
        )
        assert await fcm.simulators() == ([CHANNEL_FCM], [[CHANNEL_FCM], [CHANNEL_FCM]])
        checks = ChannelsServiceStub(delivery.server.channel())
        answer = await checks.CheckChannel(CheckChannelRequest(appkey=fcm.app.appkey, channel=CHANNEL_FCM))
        assert (answer.accepted, answer.simulated) == (True, True)


REFUSALS = {FcmAction.FAIL: 1, FcmAction.REMOVE: 1, FcmAction.STOP_APP: 1, FcmAction.RENEW_TOKEN: 2}
"""The actions by which a message goes back to the device's own connection, after so many requests."""


@pytest.mark.parametrize(("status", "reason"), [key for key in HANDLINGS if key[1] != ACCOUNT_REFUSED])
async def test_what_follows_from_each_documented_answer(fcm: FcmHarness, status: int, reason: str) -> None:
    """A refused message goes back, also while the app is stopped; any other is requested again until it expires."""
    address, action = f"{status}-{reason}:x", HANDLINGS[status, reason]
    counter = CHANNEL_ANSWERS.labels("fcm", f"{status} {reason}")
    before = counter._value.get()
    async with fcm.running():
        phone = await fcm.phone(address)
        await fcm.delivery.advance(20)
        msgid = await fcm.send_to(phone, period_s=600)
        requests = REFUSALS.get(action, 2)
        await fcm.advance_until(lambda: counter._value.get() == before + requests, 20 if status == 429 else 1)
        if action in REFUSALS:
            await fcm.delivery.advance(1)
            await fcm.delivery.expect_outcomes(OutcomeRow(msgid, phone.device, RETURNED, reason))
        else:
            assert await fcm.delivery.outcomes(FAILED, RETURNED, HANDED_OVER) == []
        await fcm.wait_commands_applied()
        is_dead = action is FcmAction.REMOVE
        assert await fcm.dead() == ([(f"phone-{address}", reason)] if is_dead else [])
    assert (fcm.google.requests, len(fcm.google.received)) == (requests, 0)


async def test_while_the_quota_is_used_up_phones_that_come_back_get_their_messages(fcm: FcmHarness) -> None:
    """Google says so for a day: nothing is sent to it, and what no phone has got ends with its time to live."""
    fcm.google.retry_after = "86400"
    async with fcm.running(), fcm.delivery.gateway() as gateway:
        refused, queued, away = [await fcm.phone(each) for each in ("once-429-QUOTA_EXCEEDED:x", "cXz1y:a", "cXz1y:b")]
        await fcm.delivery.advance(20)
        first = await fcm.send_to(refused, period_s=2 * 86_400)
        await fcm.advance_until(lambda: fcm.google.requests == 1)
        msgid, ending = await fcm.send_to(queued, period_s=3600), await fcm.send_to(away, period_s=600)
        await fcm.delivery.advance(20)
        await fcm.delivery.expect_outcomes(
            OutcomeRow(first, refused.device, CLAIMED),
            OutcomeRow(msgid, queued.device, CLAIMED),
            OutcomeRow(ending, away.device, CLAIMED),
        )
        gateway.connect((1, queued.device), appkey=fcm.app.appkey)
        await gateway.expect((1, msgid))
        recalled = OutcomeRow(msgid, queued.device, RETURNED, FixedReason.RECALLED)
        assert await fcm.delivery.outcomes(RETURNED) == [recalled]
        for _ in range(40):
            await fcm.delivery.advance(20)
        gateway.connect((2, away.device), appkey=fcm.app.appkey)
        await fcm.delivery.advance(20)
        assert [each for each in gateway.received if ending in each] == []
        assert (fcm.google.requests, list(fcm.google.received)) == (1, [])


@pytest.mark.parametrize("address", ["once-reset:x", "once-503-UNAVAILABLE:x", "once-401-UNAUTHENTICATED:x"])
async def test_a_repeated_request_is_accepted(fcm: FcmHarness, address: str) -> None:
    async with fcm.running():
        phone = await fcm.phone(address)
        await fcm.delivery.advance(20)
        msgid = await fcm.send_to(phone)
        await fcm.advance_until(lambda: len(fcm.google.received) == 1)
        await fcm.delivery.expect_outcomes(OutcomeRow(msgid, phone.device, HANDED_OVER))
        assert fcm.google.requests == 2


async def test_a_killed_delivery_repeats_the_request_and_the_phone_shows_one(fcm: FcmHarness) -> None:
    async with fcm.running():
        phone = await fcm.phone("once-silence:x")
        await fcm.delivery.advance(20)
        msgid = await fcm.send_to(phone)
        await fcm.advance_until(lambda: fcm.google.requests == 1)
    async with fcm.running():
        await fcm.advance_until(lambda: len(fcm.google.received) == 1)
        await fcm.delivery.expect_outcomes(OutcomeRow(msgid, phone.device, HANDED_OVER))


async def test_neither_a_replay_nor_a_start_asks_google_again(fcm: FcmHarness) -> None:
    """What was handed over is requested no more; of a request without an answer a replay makes none."""
    async with fcm.running():
        taken, silent = await fcm.phone("cXz1y:APA91bH"), await fcm.phone("silence:x")
        await fcm.delivery.advance(20)
        msgid = await fcm.send_to(taken)
        await fcm.advance_until(lambda: len(fcm.google.received) == 1)
        await fcm.delivery.expect_outcomes(OutcomeRow(msgid, taken.device, HANDED_OVER))
    await fcm.expect_no_requests(lambda: fcm.google.requests, at_start=True)
    async with fcm.running():
        await fcm.delivery.advance(20)
        await fcm.send_to(silent)
        await fcm.advance_until(lambda: fcm.google.requests == 2)
    await fcm.expect_no_requests(lambda: fcm.google.requests, at_start=False)


async def test_a_channel_that_does_not_accept_the_credentials_is_told_with_its_reason(fcm: FcmHarness) -> None:
    async with fcm.running():
        phone = await fcm.phone("403-PERMISSION_DENIED:x")
        await fcm.delivery.advance(20)
        msgid = await fcm.send_to(phone)
        await fcm.advance_until(lambda: fcm.google.requests == 1)
        await fcm.delivery.advance(1)
        await fcm.delivery.expect_outcomes(OutcomeRow(msgid, phone.device, RETURNED, "PERMISSION_DENIED"))
        stub = AppleStateServiceStub(fcm.delivery.server.channel())
        told = await stub.GetAppleState(GetAppleStateRequest(appkey=fcm.app.appkey))
        assert [(each.channel, each.reason) for each in told.stopped] == [(CHANNEL_FCM, "PERMISSION_DENIED")]
        assert not (await stub.GetAppleState(GetAppleStateRequest(appkey="another"))).stopped
