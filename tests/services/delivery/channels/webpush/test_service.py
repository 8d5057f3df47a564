"""A message of an absent browser: claimed, encrypted, posted to a push service that decrypts it, and each answer."""

import asyncio
import contextlib
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client import generate_latest

from protos.delivery.v1.delivery_pb2 import GetAppleStateRequest, OutcomeKind, RecordReportsRequest
from protos.delivery.v1.delivery_pb2_grpc import AppleStateServiceStub, ReportsServiceStub
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice, SetAddress
from protos.registry.v1.registry_pb2 import (
    ChannelChange,
    CreateAppRequest,
    GetDevicesRequest,
    ListAddressesRequest,
    UpdateAppRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.channels import AppLimits
from services.delivery.channels.health import Alarms
from services.delivery.channels.webpush.responses import HANDLINGS, LOCAL, WebPushAction, WebPushAnswer
from services.delivery.channels.webpush.service import WebPushService
from services.domain.channel_credentials.webpush import open_web_push, public_key_of
from services.domain.ids import event_id
from services.domain.master_key import MasterKey
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import DELIVERIES, DEVICE_COMMANDS, TOPICS, decode, device_key
from services.log.port import NewRecord, Partition
from services.log.topics import partition_of
from services.net.rpc.local import LocalServer
from services.process.metrics import CHANNEL_ANSWERS
from services.registry.main import build as build_registry
from services.registry.settings import RegistrySettings
from services.replica.peers import Peers
from services.webpush_simulator.server import WebPushSimulator
from services.webpush_simulator.subscriptions import BrowserSubscription
from testkit.apns.keys import canaries, files_containing
from testkit.delivery.gateway import report_columns
from testkit.delivery.records import CLICKED, FAILED, PARTITIONS, RECEIVED, SENT, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.services import TIMEOUT_S, add_servicers, running_services

CLAIMED, RETURNED = OutcomeKind.OUTCOME_KIND_CLAIMED, OutcomeKind.OUTCOME_KIND_RETURNED
HANDED_OVER = OutcomeKind.OUTCOME_KIND_HANDED_OVER


class Browser(NamedTuple):
    """A browser as the registry knows it, with the secrets of its subscription."""

    token: str
    device: NumberedDevice
    subscription: BrowserSubscription


class WebPushHarness:
    """Delivery, targeting and registry with one app whose pushes may go to a simulator in the test."""

    def __init__(self, delivery: DeliveryHarness) -> None:
        self.delivery = delivery
        self.push_service = WebPushSimulator(delivery.clock)
        self.app = App()
        self._registry = LocalServer()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._registry = LocalServer()
        context = self.delivery.role_context()
        settings = RegistrySettings(data_dir=str(self.delivery.directory), partitions=PARTITIONS)
        registry = build_registry(settings, context)
        add_servicers(registry, self._registry)
        async with (
            running_services([context.apps, *registry.services]),
            self.delivery.running(registry=self._registry.channel()),
        ):
            if not self.app.appkey:
                await self._create_app()
            yield

    @property
    def registry(self) -> Any:
        return RegistryServiceStub(self._registry.channel())

    async def browser(self, token: str, push_service: WebPushSimulator | None = None) -> Browser:
        """Register a device with a subscription; `token` scripts the push service's answers."""
        push_service = push_service or self.push_service
        subscription = push_service.subscribe(token, public_key_of(self.app))
        endpoint = push_service.endpoint(subscription)
        address = SetAddress(
            channel=CHANNEL_WEBPUSH, address=endpoint, p256dh=subscription.p256dh, auth=subscription.auth
        )
        await self._append(token, register=RegisterDevice(platform=PLATFORM_ANDROID))
        await self._append(token, set_address=address)
        (found,) = (await self.registry.GetDevices(GetDevicesRequest(appkey=self.app.appkey, tokens=[token]))).devices
        assert [each.address for each in found.addresses] == [endpoint]
        return Browser(token, NumberedDevice(found.partition, found.number), subscription)

    async def send(self, browser: Browser, **changes: Any) -> int:
        return await self.delivery.send(browser.device, appkey=self.app.appkey, **changes)

    async def advance_until(self, holds: Callable[[], bool], step_s: int = 1) -> None:
        """Advance the clock step by step until the condition holds, with time for the push service's answers.

        The clock does not move once the condition holds, so nothing that is due later happens.
        """
        async with asyncio.timeout(TIMEOUT_S):
            while not holds():
                for _ in range(20):
                    await asyncio.sleep(0.001)
                    if holds():
                        return
                await self.delivery.advance(step_s)

    async def simulators(self) -> tuple[list[int], list[list[int]]]:
        """Return the channels whose services are simulators, as delivery tells, and as each batch of outcomes does."""
        stub = AppleStateServiceStub(self.delivery.server.channel())
        told = await stub.GetAppleState(GetAppleStateRequest(appkey=self.app.appkey))
        partitions = [Partition(DELIVERIES.name, number) for number in range(PARTITIONS)]
        facts = [decode(record) for each in partitions for record in await self.delivery.records(each)]
        return list(told.simulators), [list(batch.simulated) for fact in facts for batch in fact.outcomes.apps]

    async def expect_no_requests(self, requests: Callable[[], int], *, at_start: bool) -> None:
        """Replay delivery, which does not run, and `at_start` let it run for a minute: nothing is requested."""
        before = requests()
        assert (await self.delivery.verify()).equal
        if at_start:
            async with self.running():
                await self.delivery.advance(60, steps=6)
        assert requests() == before

    async def dead(self) -> list[tuple[str, str]]:
        """Return the token of each dead address, and the reason."""
        request = ListAddressesRequest(appkey=self.app.appkey, dead=True, limit=10)
        found = await self.registry.ListAddresses(request)
        return [(each.token, each.dead_reason) for each in found.addresses]

    async def _create_app(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_ANDROID, name="Site", package="org.example.site")
        appkey = (await self.registry.CreateApp(request)).app.appkey
        fields = {"key": "new", "contact": "mailto:push@example.org", "hosts": self.push_service.authority}
        change = ChannelChange(channel=CHANNEL_WEBPUSH, fields=fields)
        self.app = (await self.registry.UpdateApp(UpdateAppRequest(appkey=appkey, channels=[change]))).app

    async def _append(self, token: str, **command: Any) -> None:
        key = device_key(self.app.appkey, token)
        meta = Meta(event_id=event_id(), time_ms=self.delivery.clock.now_ms(), writer="edge")
        written = DeviceCommand(meta=meta, appkey=self.app.appkey, token=token, **command)
        new_record = NewRecord(DEVICE_COMMANDS.name, partition_of(key, PARTITIONS), key, written.SerializeToString())
        await self.delivery.log.append([new_record])
        await self.wait_commands_applied()

    async def wait_commands_applied(self) -> None:
        partitions = [Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)]
        ends = await self.delivery.log.ends(partitions)
        channels = {"registry": [self._registry.channel()], "targeting": [self.delivery.targeting_server.channel()]}
        await Peers(channels, TOPICS).wait_applied(
            Position(topic=topic, partition=number, offset=end - 1) for (topic, number), end in ends.items() if end
        )


@pytest.fixture
async def web(delivery: DeliveryHarness) -> AsyncIterator[WebPushHarness]:
    delivery.settings = msgspec.structs.replace(delivery.settings, webpush="internet")
    harness = WebPushHarness(delivery)
    async with running_services([harness.push_service]):
        yield harness


def assert_only_the_registry_keeps(of_device: Sequence[bytes], directory: Path, said: bytes) -> None:
    """Assert that a device's addresses and keys are in the log and the registry's files, and not in what was said."""
    assert not [word for word in of_device if word in said or word in generate_latest()]
    holding = files_containing(directory, of_device)
    outside_of_the_log = {path.parent.name for path in holding if not path.name.startswith("log.sqlite")}
    assert outside_of_the_log == {"registry"}, "no other role keeps the address and the keys of a device"


async def test_a_message_reaches_an_absent_browser_after_the_grace_and_its_reports_count(
    web: WebPushHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    delivery = web.delivery
    async with web.running():
        browser = await web.browser("a")
        await delivery.advance(20)
        msgid = await web.send(browser)
        await web.advance_until(lambda: len(web.push_service.received) == 1)
        (got,) = web.push_service.received
        assert got.plaintext is not None
        shown = json.loads(got.plaintext)
        assert (shown["type"], shown["msgid"], shown["content"]) == ("push", msgid, f"message {msgid}")
        assert got.message.topic == f"carillon-{msgid}"
        await delivery.expect_outcomes(
            OutcomeRow(msgid, browser.device, CLAIMED), OutcomeRow(msgid, browser.device, HANDED_OVER)
        )
        assert await web.simulators() == ([], [[], []])
        reports = ReportsServiceStub(delivery.server.channel())
        by_kind = [
            report_columns(kind, [(msgid, browser.device)], appkey=web.app.appkey) for kind in (RECEIVED, CLICKED)
        ]
        for _ in range(2):
            await reports.RecordReports(RecordReportsRequest(reports=by_kind))
        assert await delivery.outcomes(RECEIVED, CLICKED) == [
            OutcomeRow(msgid, browser.device, RECEIVED),
            OutcomeRow(msgid, browser.device, CLICKED),
        ]
    opened = open_web_push(web.app, MasterKey(bytes(32)))
    assert opened is not None
    words = canaries(opened.key_pem)
    p256dh, auth = browser.subscription.p256dh, browser.subscription.auth
    of_device = [web.push_service.endpoint(browser.subscription).encode(), p256dh, auth]
    of_device += [urlsafe_b64encode(each).rstrip(b"=") for each in (p256dh, auth)]
    said = "".join(capfd.readouterr()).encode("utf-8", "surrogateescape")
    assert not [word for word in (*words, *of_device) if word in said]
    assert files_containing(delivery.directory, words) == []
    assert_only_the_registry_keeps(of_device, delivery.directory, said)


async def test_what_a_simulator_takes_stays_in_the_process_and_is_told(delivery: DeliveryHarness) -> None:
    web = WebPushHarness(delivery)
    async with running_services([web.push_service]), web.running():
        browser = await web.browser("a")
        await delivery.advance(20)
        msgid = await web.send(browser)
        (simulator,) = [service for service in delivery.role.services if isinstance(service, WebPushSimulator)]
        await web.advance_until(lambda: len(simulator.received) == 1)
        await delivery.expect_outcomes(
            OutcomeRow(msgid, browser.device, CLAIMED), OutcomeRow(msgid, browser.device, HANDED_OVER)
        )
        assert await web.simulators() == ([CHANNEL_WEBPUSH], [[CHANNEL_WEBPUSH], [CHANNEL_WEBPUSH]])
        assert web.push_service.requests == 0


DOCUMENTED = [key for key in HANDLINGS if key[0] != LOCAL]


@pytest.mark.parametrize(("status", "name"), DOCUMENTED)
async def test_what_follows_from_each_documented_answer(
    web: WebPushHarness, monkeypatch: pytest.MonkeyPatch, status: int, name: str
) -> None:
    token, alarms, reason = f"{status}-{name.rpartition(' ')[2]}.x", [], WebPushAnswer(status, name).reason
    counter = CHANNEL_ANSWERS.labels("webpush", f"{status} {name}")
    before = counter._value.get()
    async with web.running():
        browser = await web.browser(token)
        await web.delivery.advance(20)
        monkeypatch.setattr(Alarms, "log", lambda _, appkey, *words: alarms.append((appkey, words[-1])))
        msgid = await web.send(browser, period_s=7200)
        row = {
            WebPushAction.FAIL: OutcomeRow(msgid, browser.device, RETURNED, reason),
            WebPushAction.SHORTEN: OutcomeRow(msgid, browser.device, RETURNED, reason),
            WebPushAction.REMOVE: OutcomeRow(msgid, browser.device, RETURNED, reason),
        }
        expected = row.get(HANDLINGS[status, name].action)
        if expected is not None:
            await web.advance_until(lambda: web.push_service.requests > 0)
            await web.delivery.expect_outcomes(expected)
        else:  # it is sent again until the push expires
            await web.advance_until(lambda: web.push_service.requests >= 2)
            assert await web.delivery.outcomes(FAILED, RETURNED, HANDED_OVER) == []
        assert counter._value.get() > before
        assert alarms == ([(web.app.appkey, reason)] if HANDLINGS[status, name].alarm else [])
        await web.wait_commands_applied()
        is_dead = HANDLINGS[status, name].action is WebPushAction.REMOVE
        assert await web.dead() == ([(token, reason)] if is_dead else [])
        found = await web.registry.GetDevices(GetDevicesRequest(appkey=web.app.appkey, tokens=[token]))
        assert not found.devices[0].removed_ms
        assert len(found.devices[0].addresses) == (not is_dead)
    assert not web.push_service.received


@pytest.mark.parametrize("token", ["once-413-104.x", "once-401-109.x", "once-503-201.x", "once-500.x", "once-cut.x"])
async def test_a_repeated_request_is_accepted(web: WebPushHarness, token: str) -> None:
    async with web.running():
        browser = await web.browser(token)
        await web.delivery.advance(20)
        msgid = await web.send(browser)
        await web.advance_until(lambda: len(web.push_service.received) == 1)
        await web.delivery.expect_outcomes(OutcomeRow(msgid, browser.device, HANDED_OVER))
        assert web.push_service.requests == 2


async def test_a_lost_answer_is_asked_for_again_with_the_same_topic(web: WebPushHarness) -> None:
    async with web.running():
        browser = await web.browser("once-lost.x")
        await web.delivery.advance(20)
        msgid = await web.send(browser)
        await web.advance_until(lambda: len(web.push_service.received) == 2)
        await web.delivery.expect_outcomes(OutcomeRow(msgid, browser.device, HANDED_OVER))
        assert {got.message.topic for got in web.push_service.received} == {f"carillon-{msgid}"}


async def test_a_service_that_asks_for_a_pause_gets_no_request_before_its_end(web: WebPushHarness) -> None:
    web.push_service.retry_after = "120"
    async with web.running():
        slow, other = await web.browser("once-503-201.x"), await web.browser("other")
        await web.delivery.advance(20)
        first = await web.send(slow)
        await web.advance_until(lambda: web.push_service.requests == 1)
        second = await web.send(other)
        for _ in range(11):
            await web.delivery.advance(10)
            await asyncio.sleep(0.002)
        assert web.push_service.requests == 1
        await web.advance_until(lambda: len(web.push_service.received) == 2)
        await web.delivery.expect_outcomes(
            OutcomeRow(first, slow.device, HANDED_OVER), OutcomeRow(second, other.device, HANDED_OVER)
        )


async def test_a_subscription_that_gets_too_many_messages_delays_those_for_no_other_one(web: WebPushHarness) -> None:
    web.push_service.retry_after = "120"
    async with web.running():
        slow, other = await web.browser("once-429-201.x"), await web.browser("other")
        await web.delivery.advance(20)
        first = await web.send(slow)
        await web.advance_until(lambda: web.push_service.requests == 1)
        later, second = await web.send(slow), await web.send(other)
        await web.advance_until(lambda: len(web.push_service.received) == 1)
        await web.delivery.expect_outcomes(OutcomeRow(second, other.device, HANDED_OVER))
        for _ in range(10):
            await web.delivery.advance(10)
            await asyncio.sleep(0.002)
        assert web.push_service.requests == 2
        await web.advance_until(lambda: len(web.push_service.received) == 3)
        await web.delivery.expect_outcomes(
            OutcomeRow(first, slow.device, HANDED_OVER),
            OutcomeRow(later, slow.device, HANDED_OVER),
            OutcomeRow(second, other.device, HANDED_OVER),
        )


async def test_a_service_that_does_not_answer_delays_no_messages_for_another_one(
    web: WebPushHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WebPushService, "limits", AppLimits(window=4, server_window=2, waiting_claims=10))
    other = WebPushSimulator(web.delivery.clock)
    async with running_services([other]), web.running():
        hosts = {"hosts": f"{web.push_service.authority},{other.authority}"}
        change = ChannelChange(channel=CHANNEL_WEBPUSH, fields=hosts)
        await web.registry.UpdateApp(UpdateAppRequest(appkey=web.app.appkey, channels=[change]))
        silent = [await web.browser(f"silence.{number}") for number in range(6)]
        answering = await web.browser("a", other)
        await web.delivery.advance(20)
        for browser in silent:
            await web.send(browser)
        await web.advance_until(lambda: web.push_service.requests == 2)
        msgid = await web.send(answering)
        await web.advance_until(lambda: len(other.received) == 1)
        await web.delivery.expect_outcomes(OutcomeRow(msgid, answering.device, HANDED_OVER))


@pytest.mark.parametrize("token", ["once-503-201.x", "once-429-201.x"])
async def test_a_browser_that_comes_back_gets_what_its_push_service_put_off_and_the_service_never_does(
    web: WebPushHarness, token: str
) -> None:
    web.push_service.retry_after = "300"
    async with web.running(), web.delivery.gateway() as gateway:
        browser = await web.browser(token)
        await web.delivery.advance(20)
        msgid = await web.send(browser)
        await web.advance_until(lambda: web.push_service.requests == 1)
        gateway.connect((1, browser.device), appkey=web.app.appkey)
        await gateway.expect((1, msgid))
        await web.delivery.expect_outcomes(
            OutcomeRow(msgid, browser.device, RETURNED, FixedReason.RECALLED), OutcomeRow(msgid, browser.device, SENT)
        )
        gateway.request(reports=[report_columns(RECEIVED, [(msgid, browser.device)], appkey=web.app.appkey)])
        await web.delivery.expect_outcomes(OutcomeRow(msgid, browser.device, RECEIVED))
        gateway.request(disconnected=[1])
        for _ in range(40):
            await web.delivery.advance(10)
            await asyncio.sleep(0.002)
        assert (web.push_service.requests, list(web.push_service.received)) == (1, [])


async def test_a_browser_that_leaves_again_without_its_message_gets_it_from_its_push_service(
    web: WebPushHarness,
) -> None:
    web.push_service.retry_after = "300"
    async with web.running(), web.delivery.gateway() as gateway:
        browser = await web.browser("once-503-201.x")
        await web.delivery.advance(20)
        msgid = await web.send(browser)
        await web.advance_until(lambda: web.push_service.requests == 1)
        gateway.connect((1, browser.device), appkey=web.app.appkey)
        await gateway.expect((1, msgid))
        gateway.request(disconnected=[1])
        await web.advance_until(lambda: len(web.push_service.received) == 1)
        await web.delivery.expect_outcomes(
            OutcomeRow(msgid, browser.device, CLAIMED),
            OutcomeRow(msgid, browser.device, CLAIMED),
            OutcomeRow(msgid, browser.device, HANDED_OVER),
        )
        assert web.push_service.requests == 2


async def test_a_browser_that_comes_back_does_not_get_what_its_push_service_may_have(web: WebPushHarness) -> None:
    async with web.running(), web.delivery.gateway() as gateway:
        browser = await web.browser("once-lost.x")
        await web.delivery.advance(20)
        msgid = await web.send(browser)
        await web.advance_until(lambda: web.push_service.requests == 1)
        gateway.connect((1, browser.device), appkey=web.app.appkey)
        await web.advance_until(lambda: len(web.push_service.received) == 2)
        await web.delivery.expect_outcomes(OutcomeRow(msgid, browser.device, HANDED_OVER))
        assert gateway.received == []


async def test_a_killed_delivery_repeats_the_request_and_the_browser_shows_one(web: WebPushHarness) -> None:
    async with web.running():
        browser = await web.browser("once-silence.x")
        await web.delivery.advance(20)
        msgid = await web.send(browser)
        await web.advance_until(lambda: web.push_service.requests == 1)
    async with web.running():
        await web.advance_until(lambda: len(web.push_service.received) == 1)
        await web.delivery.expect_outcomes(OutcomeRow(msgid, browser.device, HANDED_OVER))


async def test_neither_a_replay_nor_a_start_asks_the_push_service_again(web: WebPushHarness) -> None:
    """What was handed over is requested no more; of a request without an answer a replay makes none."""
    async with web.running():
        taken, silent = await web.browser("a"), await web.browser("silence.x")
        await web.delivery.advance(20)
        msgid = await web.send(taken)
        await web.advance_until(lambda: len(web.push_service.received) == 1)
        await web.delivery.expect_outcomes(OutcomeRow(msgid, taken.device, HANDED_OVER))
    await web.expect_no_requests(lambda: web.push_service.requests, at_start=True)
    async with web.running():
        await web.delivery.advance(20)
        await web.send(silent)
        await web.advance_until(lambda: web.push_service.requests == 2)
    await web.expect_no_requests(lambda: web.push_service.requests, at_start=False)


async def test_endpoints_that_the_operator_did_not_name_are_not_called(web: WebPushHarness) -> None:
    async with web.running():
        await web.registry.UpdateApp(
            UpdateAppRequest(
                appkey=web.app.appkey, channels=[ChannelChange(channel=CHANNEL_WEBPUSH, fields={"hosts": ""})]
            )
        )
        browser = await web.browser("a")
        await web.delivery.advance(20)
        msgid = await web.send(browser)
        await web.advance_until(lambda: CHANNEL_ANSWERS.labels("webpush", "local endpoint refused")._value.get() > 0)
        await web.delivery.expect_outcomes(OutcomeRow(msgid, browser.device, RETURNED, "endpoint refused"))
        assert web.push_service.requests == 0
