"""iOS devices: what Apple accepts is done, what it refuses is recorded, and what may pass later is tried again."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protos.gateway.v1.sessions_pb2 import SessionBatch, SessionEvent, SessionEventKind, SessionFact
from protos.push.v1.push_pb2 import IosStyle, Message
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice, RemoveDevice
from protos.registry.v1.registry_pb2 import ApnsKeyChange, CreateAppRequest, GetDevicesRequest, UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Position
from services.apns_simulator.behaviour import Behaviour
from services.apns_simulator.certificate import SelfSigned, public_key
from services.apns_simulator.connection import Reply
from services.apns_simulator.requests import Request
from services.apns_simulator.script import Fault, prefix_of
from services.apns_simulator.server import ApnsSimulator
from services.delivery import main as delivery_main
from services.delivery.apns.sender_pool import ApnsEndpoint, CredentialsSource
from services.delivery.ios.delivery import IosDelivery
from services.domain.apns.credentials import Environment
from services.domain.ids import event_id
from services.domain.topics import DEVICE_COMMANDS, SESSIONS, TOPICS, device_key
from services.registry.main import build as build_registry
from services.registry.settings import RegistrySettings
from services.runtime.log.port import NewRecord, Partition
from services.runtime.log.topics import partition_of
from services.runtime.rpc.local import LocalServer
from services.runtime.rpc.peers import Peers
from testkit.apns_keys import KEY_ID, TEAM_ID, pem
from testkit.delivery.records import FAILED, PARTITIONS, SENT, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.services import TIMEOUT_S, add_servicers, running_services
from testkit.waiting import run_ready_tasks

GOOD = [f"{n:02x}" * 32 for n in range(6)]
DEAD = "dead" + "0" * 60
BAD = "no token of Apple's"


class Apple:
    """The stand-in of the running delivery, whose answers may be bent."""

    def __init__(self, simulator: ApnsSimulator) -> None:
        self.simulator = simulator
        self.refusals: list[tuple[int, str]] = []
        self.asked = 0
        self.unknown: set[str] = set()
        self.refused = asyncio.Event()
        self._take = simulator.reply_to
        simulator.reply_to = self._bent  # type: ignore[method-assign]

    def _bent(self, request: Request) -> Reply:
        self.asked += 1
        if any((request.header(":path") or "").endswith(token) for token in self.unknown):
            return Reply([(":status", "400")], b'{"reason":"BadDeviceToken"}')
        if not self.refusals:
            return self._take(request)
        status, reason = self.refusals.pop(0)
        if not self.refusals:
            self.refused.set()
        return Reply([(":status", str(status))], msgspec.json.encode({"reason": reason}))

    @property
    def tokens(self) -> list[str]:
        return [received.token for received in self.simulator.received]

    async def accepts(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self.simulator.wait_for(count)


class Shop:
    """A delivery with a registry, an iOS app and its devices."""

    def __init__(self, delivery: DeliveryHarness) -> None:
        self.delivery = delivery
        self.appkey = ""
        self.registry = LocalServer()
        self.show: Callable[[], None] = lambda: None

    @contextlib.asynccontextmanager
    async def running(self, registry_hidden: bool = False, apple_inside: bool = True) -> AsyncIterator[Apple]:
        self.registry = LocalServer()
        context = self.delivery.role_context()
        settings = RegistrySettings(data_dir=str(self.delivery.directory), partitions=PARTITIONS)
        registry = build_registry(settings, context)

        def show() -> None:
            add_servicers(registry, self.registry)

        self.show = show
        if not registry_hidden:
            self.show()
        async with (
            running_services([context.apps, *registry.services]),
            self.delivery.running(registry=self.registry.channel()),
        ):
            inside = [service for service in self.delivery.role.services if isinstance(service, ApnsSimulator)]
            assert len(inside) == apple_inside
            yield Apple(inside[0] if inside else ApnsSimulator(self.delivery.clock))

    async def open(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_IOS, name="Weather", package="com.example.weather")
        self.appkey = (await self.stub.CreateApp(request)).app.appkey

    @property
    def in_flight(self) -> bool:
        """Whether anything is being sent to Apple or will be tried again."""
        return any(not service.is_idle for service in self.delivery.role.services if isinstance(service, IosDelivery))

    @property
    def stub(self) -> Any:
        return RegistryServiceStub(self.registry.channel())

    async def register(self, *tokens: str) -> list[NumberedDevice]:
        await self.tell(*(self.command(token, register=RegisterDevice(platform=PLATFORM_IOS)) for token in tokens))
        return [await self.at(token) for token in tokens]

    async def at(self, token: str) -> NumberedDevice:
        (device,) = (await self.stub.GetDevices(GetDevicesRequest(appkey=self.appkey, tokens=[token]))).devices
        return NumberedDevice(device.partition, device.number)

    def command(self, token: str, **what: Any) -> DeviceCommand:
        meta = Meta(event_id=event_id(), time_ms=self.delivery.clock.now_ms(), writer="edge")
        return DeviceCommand(meta=meta, appkey=self.appkey, token=token, **what)

    async def settle(self) -> None:
        """Return once the registry and targeting have applied every device command there is."""
        partitions = [Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)]
        ends = await self.delivery.log.ends(partitions)
        await self.peers.wait_applied(
            Position(topic=topic, partition=number, offset=end - 1) for (topic, number), end in ends.items() if end
        )

    @property
    def peers(self) -> Peers:
        return Peers(
            {"registry": [self.registry.channel()], "targeting": [self.delivery.targeting_server.channel()]}, TOPICS
        )

    async def tell(self, *commands: DeviceCommand) -> None:
        new_records = []
        for command in commands:
            key = device_key(command.appkey, command.token)
            new_record = NewRecord(
                DEVICE_COMMANDS.name, partition_of(key, PARTITIONS), key, command.SerializeToString()
            )
            new_records.append(new_record)
        await self.delivery.log.append(new_records)
        await self.settle()

    async def opens(self, token: str, at: NumberedDevice) -> None:
        """The user opens the app on the device; returns when the registry knows."""
        event = SessionEvent(
            appkey=self.appkey,
            token=token,
            number=at.number,
            kind=SessionEventKind.SESSION_EVENT_KIND_APP_OPENED,
            time_ms=self.delivery.clock.now_ms(),
        )
        fact = SessionFact(meta=Meta(event_id=event_id()), batch=SessionBatch(events=[event]))
        (offset,) = await self.delivery.log.append(
            [NewRecord(SESSIONS.name, at.partition, b"", fact.SerializeToString())]
        )
        await self.peers.wait_applied([Position(topic=SESSIONS.name, partition=at.partition, offset=offset)])

    async def send(self, *devices: NumberedDevice, **changes: Any) -> int:
        message = Message(is_notif=True, content="hello", ios=IosStyle(badge=3))
        given = {"appkey": self.appkey, "platform": PLATFORM_IOS, "message": message}
        return await self.delivery.send(*devices, **{**given, **changes})

    async def begun(self) -> None:
        """Return once something is under way; it must not end before time passes."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.in_flight:
                await asyncio.sleep(0)

    async def pass_time_until(self, holds: Callable[[], bool], seconds: int = 3000) -> None:
        for _ in range(seconds):
            if holds():
                return
            await self.delivery.advance(1)
        assert holds()


@pytest.fixture
async def shop(delivery: DeliveryHarness) -> Shop:
    delivery.settings = msgspec.structs.replace(delivery.settings, apns_url=None)
    shop = Shop(delivery)
    async with shop.running():
        await shop.open()
    return shop


async def test_what_apple_accepts_is_done(shop: Shop) -> None:
    async with shop.running() as apple:
        devices = await shop.register(*GOOD)
        msgid = await shop.send()
        await shop.delivery.expect_outcomes(*(OutcomeRow(msgid, at, SENT) for at in devices))
        assert sorted(apple.tokens) == GOOD
        received = apple.simulator.received[0]
        assert received.headers["apns-topic"] == "com.example.weather"
        assert received.headers["apns-collapse-id"] == str(msgid)
        assert received.body == {"aps": {"alert": "hello", "badge": 3}}
        async with asyncio.timeout(TIMEOUT_S):
            while shop.delivery.store().state.started:
                await asyncio.sleep(0)
    assert (await shop.delivery.verify()).equal


async def test_each_entry_of_a_list_has_its_own_id(shop: Shop) -> None:
    async with shop.running() as apple:
        one, other = await shop.register(*GOOD[:2])
        first = await shop.send(one, other, one, id_count=3)
        await shop.delivery.expect_outcomes(
            OutcomeRow(first, one, SENT), OutcomeRow(first + 1, other, SENT), OutcomeRow(first + 2, one, SENT)
        )
        assert len(apple.tokens) == 3


COUNTING = Message(is_notif=True, content="one more", ios=IosStyle(badge=-1))


async def test_a_badge_that_counts_up_does_so_on_each_device_until_its_app_is_opened(shop: Shop) -> None:
    async with shop.running() as apple:
        one, other = await shop.register(*GOOD[:2])
        for _ in range(2):
            await shop.send(one, message=COUNTING)
        await shop.send(message=COUNTING)
        await apple.accepts(4)
        assert badges(apple, GOOD[0]) == [1, 2, 3]
        assert badges(apple, GOOD[1]) == [1]
        await shop.send(one, message=Message(is_notif=True, content="seven", ios=IosStyle(badge=7)))
        await shop.send(one, message=COUNTING)
        await apple.accepts(6)
        assert badges(apple, GOOD[0]) == [1, 2, 3, 7, 8]
        await shop.delivery.recorder().wait_recorded()
        before = shop.delivery.read_snapshot()
    shop.delivery.write_snapshot(before)
    async with shop.running() as apple:
        await shop.send(one, other, message=COUNTING)
        await apple.accepts(2)
        assert (badges(apple, GOOD[0]), badges(apple, GOOD[1])) == ([9], [2])
        shop.delivery.clock.move(1)
        await shop.opens(GOOD[0], one)
        shop.delivery.clock.move(1)
        await shop.send(one, other, message=COUNTING)
        await shop.send(one, message=COUNTING)
        await apple.accepts(5)
        assert (badges(apple, GOOD[0]), badges(apple, GOOD[1])) == ([9, 1, 2], [2, 3])
    assert (await shop.delivery.verify()).equal


def badges(apple: Apple, token: str) -> list[int]:
    return [received.body["aps"]["badge"] for received in apple.simulator.received if received.token == token]  # type: ignore[index]


async def test_a_message_that_is_no_notification_goes_in_the_background(shop: Shop) -> None:
    async with shop.running() as apple:
        (device,) = await shop.register(GOOD[0])
        await shop.send(device, message=Message(content="x"))
        await apple.accepts(1)
        headers = apple.simulator.received[0].headers
        assert (headers["apns-push-type"], headers["apns-priority"]) == ("background", "5")


async def test_dead_tokens_are_recorded_and_taken_out_of_the_registry(shop: Shop) -> None:
    async with shop.running() as apple:
        dead, bad, good = await shop.register(DEAD, BAD, GOOD[0])
        shop.delivery.clock.move(5)
        msgid = await shop.send()
        await shop.delivery.expect_outcomes(
            OutcomeRow(msgid, dead, FAILED, "Unregistered"), OutcomeRow(msgid, bad, FAILED, "BadDeviceToken")
        )
        await shop.delivery.expect_outcomes(OutcomeRow(msgid, good, SENT))
        await shop.settle()
        again = await shop.send(dead, bad)
        await shop.delivery.expect_outcomes(
            OutcomeRow(msgid, dead, FAILED, "Unregistered"),
            OutcomeRow(msgid, bad, FAILED, "BadDeviceToken"),
            OutcomeRow(again, dead, FAILED, "removed"),
            OutcomeRow(again, bad, FAILED, "removed"),
        )
        assert apple.asked == 3


async def test_a_token_that_came_back_since_apple_saw_it_die_stays(shop: Shop) -> None:
    async with shop.running():
        (device,) = await shop.register(DEAD)
        msgid = await shop.send(device)
        await shop.delivery.expect_outcomes(OutcomeRow(msgid, device, FAILED, "Unregistered"))
        partition = Partition(DEVICE_COMMANDS.name, device.partition)
        *_, removal = [DeviceCommand.FromString(r.value) for r in await shop.delivery.records(partition)]
        assert removal.remove == RemoveDevice(reason="Unregistered", registered_before_ms=shop.delivery.clock.now_ms())
        assert await shop.at(DEAD) == device


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (429, "TooManyRequests"),
        (500, "InternalServerError"),
        (503, "Shutdown"),
        (403, "InvalidProviderToken"),
        (400, "IdleTimeout"),
    ],
)
async def test_what_may_pass_is_tried_again_ever_more_slowly(shop: Shop, status: int, reason: str) -> None:
    async with shop.running() as apple:
        (device,) = await shop.register(GOOD[0])
        apple.refusals = [(status, reason)] * 3
        msgid = await shop.send(device)
        tried_at = []
        for attempt in range(1, 5):
            await shop.pass_time_until(lambda attempt=attempt: apple.asked == attempt)  # type: ignore[misc]
            tried_at.append(shop.delivery.clock.now_ms())
            await run_ready_tasks()
        await shop.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))
        gaps = [later - earlier for earlier, later in itertools.pairwise(tried_at)]
        assert gaps[0] >= 1000
        assert gaps[1] >= 2000
        assert gaps[2] >= 4000
        assert await shop.delivery.outcomes(FAILED) == []


async def test_what_apple_refuses_for_good_is_not_tried_again(shop: Shop) -> None:
    async with shop.running() as apple:
        (device,) = await shop.register(GOOD[0])
        apple.refusals = [(413, "PayloadTooLarge")]
        msgid = await shop.send(device)
        await shop.delivery.expect_outcomes(OutcomeRow(msgid, device, FAILED, "PayloadTooLarge"))
        await shop.delivery.advance(60, steps=60)
        assert apple.asked == 1


async def test_trying_again_ends_when_the_push_expires_or_is_cancelled(shop: Shop) -> None:
    async with shop.running() as apple:
        one, other = await shop.register(*GOOD[:2])
        apple.refusals = [(503, "Shutdown")] * 1000
        expiring = await shop.send(one, period_s=10)
        cancelled = await shop.send(other)
        await shop.pass_time_until(lambda: apple.asked >= 4)
        await shop.delivery.cancel(cancelled, shop.appkey)
        await shop.delivery.advance(10, steps=10)
        await shop.delivery.wait_facts("finished", 1)
        await shop.pass_time_until(lambda: not shop.in_flight)
        asked = apple.asked
        apple.refusals.clear()
        await shop.delivery.advance(1000, steps=100)
        assert (apple.asked, apple.tokens) == (asked, [])
        assert await shop.delivery.facts(expiring) == [("started", one.partition), ("finished", one.partition)]


async def test_what_was_left_at_the_stop_is_sent_after_the_next_start(shop: Shop) -> None:
    async with shop.running() as apple:
        one, other = await shop.register(*GOOD[:2])
        sent = await shop.send(one)
        await shop.delivery.expect_outcomes(OutcomeRow(sent, one, SENT))
        apple.refusals = [(503, "Shutdown")]
        left = await shop.send(other)
        await asyncio.wait_for(apple.refused.wait(), TIMEOUT_S)
    async with shop.running() as apple:
        await shop.delivery.expect_outcomes(OutcomeRow(sent, one, SENT), OutcomeRow(left, other, SENT))
        assert apple.tokens == [GOOD[1]]


async def test_while_the_registry_is_away_pushes_wait(shop: Shop) -> None:
    async with shop.running():
        (device,) = await shop.register(GOOD[0])
    async with shop.running(registry_hidden=True) as apple:
        msgid = await shop.send(device)
        await shop.delivery.advance(3, steps=3)
        assert apple.asked == 0
        shop.show()
        await shop.pass_time_until(lambda: apple.asked == 1)
        await shop.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))


async def test_while_apple_does_not_accept_the_key_one_push_at_a_time_tries(shop: Shop) -> None:
    async with shop.running() as apple:
        devices = await shop.register(*GOOD)
        apple.refusals = [(403, "InvalidProviderToken")] * 4
        msgid = await shop.send()
        await asyncio.wait_for(until_asked(apple, 1), TIMEOUT_S)
        tries = []
        for attempt in range(1, 5):
            await shop.pass_time_until(lambda attempt=attempt: apple.asked >= attempt)  # type: ignore[misc]
            tries.append(shop.delivery.clock.now_ms())
            assert apple.asked == attempt
        assert [later - earlier for earlier, later in itertools.pairwise(tries)] == [5000, 10_000, 20_000]
        await shop.pass_time_until(lambda: len(apple.tokens) == len(GOOD))
        await shop.delivery.expect_outcomes(*(OutcomeRow(msgid, at, SENT) for at in devices))
        assert apple.asked == 4 + len(GOOD)


async def test_an_app_with_a_key_of_its_own_sends_to_apple_and_one_without_waits(
    delivery: DeliveryHarness, tmp_path: Path
) -> None:
    key, simulator = pem(), ApnsSimulator(delivery.clock)
    simulator.keys.register(TEAM_ID, KEY_ID, public_key(key))
    async with running_services([simulator]):
        authority = tmp_path / "authority.pem"
        authority.write_text(simulator.authority)
        delivery.settings = msgspec.structs.replace(
            delivery.settings, apns_url=simulator.url, apns_authority=str(authority)
        )
        shop = Shop(delivery)
        async with shop.running(apple_inside=False):
            await shop.open()
            (device,) = await shop.register(GOOD[0])
            msgid = await shop.send(device)
            await delivery.advance(3, steps=3)
            assert not simulator.received
            change = ApnsKeyChange(pem=key, key_id=KEY_ID, team_id=TEAM_ID)
            await shop.stub.UpdateApp(UpdateAppRequest(appkey=shop.appkey, apns=change))
            await shop.pass_time_until(lambda: len(simulator.received) == 1)
            await delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))


async def test_an_expired_provider_token_is_renewed_and_the_push_goes_at_once(shop: Shop) -> None:
    async with shop.running() as apple:
        (device,) = await shop.register(GOOD[0])
        apple.refusals = [(403, "ExpiredProviderToken")]
        began_ms = shop.delivery.clock.now_ms()
        msgid = await shop.send(device)
        await shop.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))
        assert shop.delivery.clock.now_ms() == began_ms


async def test_a_provider_token_that_stays_expired_stops_the_app_for_a_while(shop: Shop) -> None:
    async with shop.running() as apple:
        (device,) = await shop.register(GOOD[0])
        apple.refusals = [(403, "ExpiredProviderToken")] * 2
        began_ms = shop.delivery.clock.now_ms()
        msgid = await shop.send(device)
        await shop.pass_time_until(lambda: apple.asked == 3)
        assert shop.delivery.clock.now_ms() > began_ms
        await shop.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))


async def test_too_many_pushes_to_one_device_delay_it_alone(shop: Shop) -> None:
    async with shop.running() as apple:
        one, other = await shop.register(prefix_of(429, "TooManyRequests", once=True) + GOOD[0][6:], GOOD[1])
        first = await shop.send(one)
        await asyncio.wait_for(until_asked(apple, 1), TIMEOUT_S)
        second = await shop.send(one)
        third = await shop.send(other)
        await shop.delivery.expect_outcomes(OutcomeRow(third, other, SENT))
        await run_ready_tasks()
        assert apple.asked == 2
        await shop.pass_time_until(lambda: apple.asked == 4)
        await shop.delivery.expect_outcomes(
            OutcomeRow(first, one, SENT), OutcomeRow(second, one, SENT), OutcomeRow(third, other, SENT)
        )


async def test_what_nobody_knows_is_recorded_as_that_in_the_end(shop: Shop) -> None:
    async with shop.running():
        (device,) = await shop.register(prefix_of(0, fault=Fault.RESET) + GOOD[0][4:])
        msgid = await shop.send(device, period_s=2000)
        await shop.begun()
        await shop.pass_time_until(lambda: not shop.in_flight)
        await shop.delivery.expect_outcomes(OutcomeRow(msgid, device, FAILED, "unknown: reset: INTERNAL_ERROR"))


async def test_a_silent_device_holds_up_no_other(shop: Shop) -> None:
    async with shop.running() as apple:
        await shop.register(GOOD[0])
        (silent,) = await shop.register(prefix_of(0, fault=Fault.SILENCE) + GOOD[0][4:])
        await shop.send()
        others = await shop.register(*GOOD[1:])
        await apple.accepts(1)
        msgid = await shop.send(*others)
        await shop.delivery.expect_outcomes(
            *(OutcomeRow(msgid, at, SENT) for at in others), OutcomeRow(msgid - 1, await shop.at(GOOD[0]), SENT)
        )
        assert silent


async def test_a_token_of_the_other_environment_is_found_there_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign, bad = prefix_of(400, "BadDeviceToken") + GOOD[0][6:], BAD
    sandbox = ApnsSimulator(shop.delivery.clock)
    monkeypatch.setattr("services.apns_simulator.script.BY_PREFIX", {})
    in_production = delivery_main._endpoints

    def places(settings: Any, simulator: ApnsSimulator) -> dict[Environment, ApnsEndpoint]:
        both = in_production(settings, simulator)
        return {**both, Environment.SANDBOX: ApnsEndpoint(sandbox.url, sandbox.authority)}

    throw_away_key = delivery_main._simulator_credentials

    def both(simulator: ApnsSimulator) -> CredentialsSource:
        of = throw_away_key(simulator)
        return lambda app: replace(found, environment=Environment.BOTH) if (found := of(app)) else None

    monkeypatch.setattr(delivery_main, "_endpoints", places)
    monkeypatch.setattr(delivery_main, "_simulator_credentials", both)
    async with running_services([sandbox]), shop.running() as apple:
        apple.unknown = {foreign}
        one, other = await shop.register(foreign, bad)
        msgid = await shop.send()
        await shop.delivery.expect_outcomes(
            OutcomeRow(msgid, one, SENT), OutcomeRow(msgid, other, FAILED, "BadDeviceToken")
        )
        assert [received.token for received in sandbox.received] == [foreign]
        assert (apple.asked, apple.tokens, sandbox.refused) == (2, [], {"BadDeviceToken": 1})


async def test_every_device_gets_a_broadcast_though_apple_dies_and_says_goodbye_again_and_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least once, a repeat with the same collapse id, and one outcome for each device."""
    certificate, clock = SelfSigned.make("127.0.0.1"), shop.delivery.clock
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = ApnsEndpoint(f"https://127.0.0.1:{port}", certificate.certificate_pem)
    monkeypatch.setattr(delivery_main, "_endpoints", lambda settings, simulator: dict.fromkeys(Environment, place))
    tokens = [f"{number:064x}" for number in range(400)]
    lives: list[ApnsSimulator] = []
    async with shop.running():
        devices = await shop.register(*tokens)
        msgid = await shop.send(period_s=100_000_000)
        await shop.begun()
        for life in range(200):
            behaviour = Behaviour(streams=20, latency_ms=1, goaway_every=17 + life % 7)
            simulator = ApnsSimulator(clock, port=port, behaviour=behaviour, certificate=certificate)
            lives.append(simulator)
            async with running_services([simulator]):
                async with asyncio.timeout(TIMEOUT_S):
                    while len(simulator.received) < 23 and shop.in_flight:
                        await shop.delivery.advance(1)
                for connection in list(simulator.connections):
                    connection.abort()
            await shop.delivery.advance(1)
            if not shop.in_flight:
                break
        await shop.delivery.expect_outcomes(*(OutcomeRow(msgid, at, SENT) for at in devices))
    received = [push for simulator in lives for push in simulator.received]
    assert {push.token for push in received} == set(tokens)
    assert {push.headers["apns-collapse-id"] for push in received} == {str(msgid)}
    assert len(await shop.delivery.outcomes(SENT)) == len(tokens)
    assert len(lives) > 5


async def until_asked(apple: Apple, count: int) -> None:
    while apple.asked < count:
        await asyncio.sleep(0)


async def test_a_paced_push_goes_to_apple_at_its_speed(shop: Shop) -> None:
    async with shop.running() as apple:
        await shop.register(*GOOD)
        await shop.send(qps=2)
        await apple.accepts(1)
        for seconds in (1, 2):
            await shop.pass_time_until(lambda seconds=seconds: len(apple.tokens) >= 1 + 2 * seconds)  # type: ignore[misc]
            assert len(apple.tokens) <= 2 + (shop.delivery.clock.now_ms() - 1_800_000_000_000) // 500
        await shop.pass_time_until(lambda: len(apple.tokens) == 6)
        assert shop.delivery.clock.now_ms() >= 1_800_000_000_000 + 2500
