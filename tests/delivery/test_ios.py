"""iOS devices: what Apple accepts is done, what it refuses is recorded, and what may pass later is tried again."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from protos.push.v1.push_pb2 import IosStyle, Message
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice, RemoveDevice
from protos.registry.v1.registry_pb2 import CreateAppRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.apple import Request
from services.delivery.ios import IosDelivery
from services.delivery.standin import ApnsStandIn
from services.registry.main import RegistrySettings
from services.registry.main import build as build_registry
from services.runtime.ids import event_id
from services.runtime.log import Draft, Partition
from services.runtime.peers import Peers
from services.runtime.rpc import LocalServer
from services.runtime.topics import DEVICE_COMMANDS, device_key, partition_of
from tests.delivery.conftest import (
    BOUND_S,
    FAILED,
    PARTITIONS,
    SENT,
    At,
    House,
    Row,
    idle,
    started,
)
from tests.support.mortal import add_servicers

GOOD = [f"{n:02x}" * 32 for n in range(6)]
DEAD = "dead" + "0" * 60
BAD = "no token of Apple's"
Answer = tuple[list[tuple[str, str]], bytes]


class Apple:
    """The stand-in of the running delivery, whose answers may be bent."""

    def __init__(self, standin: ApnsStandIn) -> None:
        self.standin = standin
        self.refusals: list[tuple[int, str]] = []
        self.asked = 0
        self.refused = asyncio.Event()
        self._take = standin.take
        standin.take = self._bent  # type: ignore[method-assign]

    def _bent(self, request: Request) -> Answer:
        self.asked += 1
        if not self.refusals:
            return self._take(request)
        status, reason = self.refusals.pop(0)
        if not self.refusals:
            self.refused.set()
        return [(":status", str(status))], msgspec.json.encode({"reason": reason})

    @property
    def tokens(self) -> list[str]:
        return [received.token for received in self.standin.received]

    async def accepts(self, count: int) -> None:
        async with asyncio.timeout(BOUND_S):
            await self.standin.wait_for(count)


class Shop:
    """A house with a registry, an iOS app and its devices."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.appkey = ""
        self.registry = LocalServer()
        self.show: Callable[[], None] = lambda: None

    @contextlib.asynccontextmanager
    async def running(self, registry_hidden: bool = False) -> AsyncIterator[Apple]:
        self.registry = LocalServer()
        around = self.house.surroundings()
        settings = RegistrySettings(data_dir=str(self.house.directory), partitions=PARTITIONS)
        registry = build_registry(settings, around)

        def show() -> None:
            add_servicers(registry, self.registry)

        self.show = show
        if not registry_hidden:
            self.show()
        async with (
            started([around.apps, *registry.services]),
            self.house.running(registry=self.registry.channel()),
        ):
            standin = next(service for service in self.house.role.services if isinstance(service, ApnsStandIn))
            yield Apple(standin)

    async def open(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_IOS, name="Weather", package="com.example.weather")
        self.appkey = (await self.stub.CreateApp(request)).app.appkey

    @property
    def under_way(self) -> bool:
        """Whether anything is being sent to Apple or will be tried again."""
        return any(service._tasks for service in self.house.role.services if isinstance(service, IosDelivery))

    @property
    def stub(self) -> Any:
        return RegistryServiceStub(self.registry.channel())

    async def register(self, *tokens: str) -> list[At]:
        await self.tell(*(self.command(token, register=RegisterDevice(platform=PLATFORM_IOS)) for token in tokens))
        return [await self.at(token) for token in tokens]

    async def at(self, token: str) -> At:
        (device,) = (await self.stub.GetDevices(GetDevicesRequest(appkey=self.appkey, tokens=[token]))).devices
        return At(device.partition, device.number)

    def command(self, token: str, **what: Any) -> DeviceCommand:
        meta = Meta(event_id=event_id(), time_ms=self.house.clock.now_ms(), writer="edge")
        return DeviceCommand(meta=meta, appkey=self.appkey, token=token, **what)

    async def settle(self) -> None:
        """Return once the registry and targeting have applied every device command there is."""
        partitions = [Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)]
        ends = await self.house.log.ends(partitions)
        await self.peers.settle(
            Position(topic=topic, partition=number, offset=end - 1) for (topic, number), end in ends.items() if end
        )

    @property
    def peers(self) -> Peers:
        return Peers({"registry": [self.registry.channel()], "targeting": [self.house.targeting.channel()]})

    async def tell(self, *commands: DeviceCommand) -> None:
        drafts = []
        for command in commands:
            key = device_key(command.appkey, command.token)
            draft = Draft(DEVICE_COMMANDS.name, partition_of(key, PARTITIONS), key, command.SerializeToString())
            drafts.append(draft)
        await self.house.log.append(drafts)
        await self.settle()

    async def send(self, *devices: At, **changes: Any) -> int:
        message = Message(is_notif=True, content="hello", ios=IosStyle(badge=3))
        given = {"appkey": self.appkey, "platform": PLATFORM_IOS, "message": message}
        return await self.house.send(*devices, **{**given, **changes})

    async def pass_time_until(self, holds: Callable[[], bool], seconds: int = 3000) -> None:
        for _ in range(seconds):
            if holds():
                return
            await self.house.move(1)
        assert holds()


@pytest.fixture
async def shop(house: House) -> Shop:
    house.settings = msgspec.structs.replace(house.settings, apns_url=None)
    shop = Shop(house)
    async with shop.running():
        await shop.open()
    return shop


async def test_what_apple_accepts_is_done(shop: Shop) -> None:
    async with shop.running() as apple:
        devices = await shop.register(*GOOD)
        msgid = await shop.send()
        await shop.house.recorded(*(Row(msgid, at, SENT) for at in devices))
        assert sorted(apple.tokens) == GOOD
        received = apple.standin.received[0]
        assert received.headers["apns-topic"] == "com.example.weather"
        assert received.headers["apns-collapse-id"] == str(msgid)
        assert received.body == {"aps": {"alert": "hello", "badge": 3}}
        async with asyncio.timeout(BOUND_S):
            while shop.house.fold().state.pushes:
                await asyncio.sleep(0)
    assert (await shop.house.verify()).equal


async def test_each_entry_of_a_list_has_its_own_id(shop: Shop) -> None:
    async with shop.running() as apple:
        one, other = await shop.register(*GOOD[:2])
        first = await shop.send(one, other, one, id_count=3)
        await shop.house.recorded(Row(first, one, SENT), Row(first + 1, other, SENT), Row(first + 2, one, SENT))
        assert len(apple.tokens) == 3


async def test_a_message_that_is_no_notification_goes_in_the_background(shop: Shop) -> None:
    async with shop.running() as apple:
        (device,) = await shop.register(GOOD[0])
        await shop.send(device, message=Message(content="x"))
        await apple.accepts(1)
        headers = apple.standin.received[0].headers
        assert (headers["apns-push-type"], headers["apns-priority"]) == ("background", "5")


async def test_dead_tokens_are_recorded_and_taken_out_of_the_registry(shop: Shop) -> None:
    async with shop.running() as apple:
        dead, bad, good = await shop.register(DEAD, BAD, GOOD[0])
        shop.house.clock.move(5)
        msgid = await shop.send()
        await shop.house.recorded(Row(msgid, dead, FAILED, "Unregistered"), Row(msgid, bad, FAILED, "BadDeviceToken"))
        await shop.house.recorded(Row(msgid, good, SENT))
        await shop.settle()
        again = await shop.send(dead, bad)
        await shop.house.recorded(
            Row(msgid, dead, FAILED, "Unregistered"),
            Row(msgid, bad, FAILED, "BadDeviceToken"),
            Row(again, dead, FAILED, "removed"),
            Row(again, bad, FAILED, "removed"),
        )
        assert apple.asked == 3


async def test_a_token_that_came_back_since_apple_saw_it_die_stays(shop: Shop) -> None:
    async with shop.running():
        (device,) = await shop.register(DEAD)
        msgid = await shop.send(device)
        await shop.house.recorded(Row(msgid, device, FAILED, "Unregistered"))
        partition = Partition(DEVICE_COMMANDS.name, device.partition)
        *_, removal = [DeviceCommand.FromString(r.value) for r in await shop.house.records(partition)]
        assert removal.remove == RemoveDevice(reason="Unregistered", registered_before_ms=shop.house.clock.now_ms())
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
            tried_at.append(shop.house.clock.now_ms())
            await idle()
        await shop.house.recorded(Row(msgid, device, SENT))
        gaps = [later - earlier for earlier, later in itertools.pairwise(tried_at)]
        assert gaps[0] >= 1000
        assert gaps[1] >= 2000
        assert gaps[2] >= 4000
        assert await shop.house.outcomes(FAILED) == []


async def test_what_apple_refuses_for_good_is_not_tried_again(shop: Shop) -> None:
    async with shop.running() as apple:
        (device,) = await shop.register(GOOD[0])
        apple.refusals = [(413, "PayloadTooLarge")]
        msgid = await shop.send(device)
        await shop.house.recorded(Row(msgid, device, FAILED, "PayloadTooLarge"))
        await shop.house.move(60, steps=60)
        assert apple.asked == 1


async def test_trying_again_ends_when_the_push_expires_or_is_cancelled(shop: Shop) -> None:
    async with shop.running() as apple:
        one, other = await shop.register(*GOOD[:2])
        apple.refusals = [(503, "Shutdown")] * 1000
        expiring = await shop.send(one, period_s=10)
        cancelled = await shop.send(other)
        await shop.pass_time_until(lambda: apple.asked >= 4)
        await shop.house.cancel(cancelled, shop.appkey)
        await shop.house.move(10, steps=10)
        await shop.house.until_facts("finished", 1)
        await shop.pass_time_until(lambda: not shop.under_way)
        asked = apple.asked
        apple.refusals.clear()
        await shop.house.move(1000, steps=100)
        assert (apple.asked, apple.tokens) == (asked, [])
        assert await shop.house.facts(expiring) == [("started", one.partition), ("finished", one.partition)]


async def test_what_was_left_at_the_stop_is_sent_after_the_next_start(shop: Shop) -> None:
    async with shop.running() as apple:
        one, other = await shop.register(*GOOD[:2])
        sent = await shop.send(one)
        await shop.house.recorded(Row(sent, one, SENT))
        apple.refusals = [(503, "Shutdown")]
        left = await shop.send(other)
        await asyncio.wait_for(apple.refused.wait(), BOUND_S)
    async with shop.running() as apple:
        await shop.house.recorded(Row(sent, one, SENT), Row(left, other, SENT))
        assert apple.tokens == [GOOD[1]]


async def test_while_the_registry_is_away_pushes_wait(shop: Shop) -> None:
    async with shop.running():
        (device,) = await shop.register(GOOD[0])
    async with shop.running(registry_hidden=True) as apple:
        msgid = await shop.send(device)
        await shop.house.move(3, steps=3)
        assert apple.asked == 0
        shop.show()
        await shop.pass_time_until(lambda: apple.asked == 1)
        await shop.house.recorded(Row(msgid, device, SENT))


async def test_a_paced_push_goes_to_apple_at_its_speed(shop: Shop) -> None:
    async with shop.running() as apple:
        await shop.register(*GOOD)
        await shop.send(qps=2)
        await apple.accepts(1)
        for seconds in (1, 2):
            await shop.pass_time_until(lambda seconds=seconds: len(apple.tokens) >= 1 + 2 * seconds)  # type: ignore[misc]
            assert len(apple.tokens) <= 2 + (shop.house.clock.now_ms() - 1_800_000_000_000) // 500
        await shop.pass_time_until(lambda: len(apple.tokens) == 6)
        assert shop.house.clock.now_ms() >= 1_800_000_000_000 + 2500
