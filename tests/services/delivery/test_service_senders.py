"""The running role learns who has addresses, and hands messages over to a push service and no other way."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import ChannelOptions
from protos.registry.v1.apps_pb2 import (
    CHANNEL_FCM,
    CHANNEL_HMS,
    CHANNEL_WEBPUSH,
    PLATFORM_ANDROID,
    ROUTE_AUTO,
    ROUTE_OWN,
    ROUTE_VENDOR,
    App,
)
from protos.registry.v1.devices_pb2 import Address
from protos.registry.v1.registry_pb2 import (
    GetAddressesRequest,
    GetAddressesResponse,
    GetTokensRequest,
    GetTokensResponse,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceServicer, add_RegistryServiceServicer_to_server
from services.delivery import main
from services.delivery.channels import ClaimAnswer, ClaimedMessage, ServedChannel
from services.delivery.service_senders import AddressRefresher, ServiceSenders
from services.net.rpc.local import LocalServer
from testkit.delivery.records import APP, RECEIVED, NumberedDevice, OutcomeRow
from testkit.delivery.role import ANDROID_APP, DeliveryHarness
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.delivery.channels.test_service_channel import WINDOW, Toy, ToyAnswer

A, B, LATER = NumberedDevice(0, 0), NumberedDevice(0, 1), NumberedDevice(1, 5)
HANDED_OVER, CLAIMED = OutcomeKind.OUTCOME_KIND_HANDED_OVER, OutcomeKind.OUTCOME_KIND_CLAIMED
RETURNED = OutcomeKind.OUTCOME_KIND_RETURNED


class Registry(RegistryServiceServicer):
    """A registry in which every device has an address."""

    async def GetAddresses(self, request: GetAddressesRequest, context: Any) -> GetAddressesResponse:
        return GetAddressesResponse(addresses=[Address(address=f"https://{number}") for number in request.numbers])

    async def GetTokens(self, request: GetTokensRequest, context: Any) -> GetTokensResponse:
        return GetTokensResponse(tokens=["token" for _ in request.numbers], active_ms=[0 for _ in request.numbers])


@pytest.fixture
def registry() -> LocalServer:
    server = LocalServer()
    registry: Any = Registry()  # type: ignore[abstract]  # its other calls are not made here
    add_RegistryServiceServicer_to_server(registry, server)  # type: ignore[arg-type]
    return server


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy()
    toy.channel = CHANNEL_WEBPUSH
    monkeypatch.setattr(main, "served_channels", lambda *_: [ServedChannel(toy)])
    return toy


async def refresh(delivery: DeliveryHarness) -> None:
    """Have delivery learn who has addresses, and what the app's route is, now and not within the next 10 s."""
    (refresher,) = [service for service in delivery.role.services if isinstance(service, AddressRefresher)]
    await refresher.refresh()


async def answer(toy: Toy, reason: str) -> None:
    """Answer the request that the push service gets next, or has got."""
    await until_holds(lambda: bool(toy.pending))
    toy.pending.pop().answered(ToyAnswer(reason))


async def test_a_device_without_a_connection_gets_its_messages_from_the_push_service(
    delivery: DeliveryHarness, toy: Toy, registry: LocalServer
) -> None:
    async with delivery.running(registry=registry.channel()), delivery.gateway() as gateway:
        await delivery.resume(ANDROID_APP)
        await delivery.register(A, channels=[CHANNEL_WEBPUSH])
        await delivery.register(B)
        await refresh(delivery)
        await delivery.advance(16, steps=2)
        msgid = await delivery.send(A, B)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED))
        await until_holds(lambda: bool(toy.pending))
        assert [pending.request for pending in toy.pending] == [f"https://0: message {msgid} ({msgid}, key)"]
        await answer(toy, "")
        await delivery.expect_outcomes(OutcomeRow(msgid, A, HANDED_OVER))
        gateway.connect((1, A), (2, B))
        await gateway.expect((2, msgid))
        gateway.acknowledge((msgid, A), (msgid, B))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED), OutcomeRow(msgid, B, RECEIVED))


async def test_an_address_that_is_set_while_a_message_waits_has_it_handed_over(
    delivery: DeliveryHarness, toy: Toy, registry: LocalServer
) -> None:
    async with delivery.running(registry=registry.channel()):
        await delivery.resume(ANDROID_APP)
        await delivery.register(LATER)
        msgid = await delivery.send(LATER)
        await delivery.advance(30, steps=3)
        assert not toy.pending
        await delivery.register(LATER, channels=[CHANNEL_WEBPUSH])
        await refresh(delivery)
        await delivery.expect_outcomes(OutcomeRow(msgid, LATER, CLAIMED))
        await answer(toy, "too long")
        await delivery.expect_outcomes(OutcomeRow(msgid, LATER, RETURNED, "too long"))


async def test_a_new_address_is_known_at_once(delivery: DeliveryHarness, toy: Toy, registry: LocalServer) -> None:
    """By a push that is sent after the address was set, and by one that has waited for it; the clock does not move."""
    async with delivery.running(registry=registry.channel()):
        await delivery.resume(ANDROID_APP)
        await refresh(delivery)
        await delivery.advance(16, steps=2)
        await delivery.register(LATER)
        waiting = await delivery.send(LATER)
        await delivery.register(A, channels=[CHANNEL_WEBPUSH])
        msgid = await delivery.send(A)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED))
        await delivery.register(LATER, channels=[CHANNEL_WEBPUSH])
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED), OutcomeRow(waiting, LATER, CLAIMED))
        await until_holds(lambda: len(toy.pending) == 2)
        for _ in range(2):
            await answer(toy, "")


async def test_what_waits_is_handed_over_once_the_service_accepts_the_credentials_again(
    delivery: DeliveryHarness, toy: Toy, registry: LocalServer
) -> None:
    async with delivery.running(registry=registry.channel()):
        await delivery.resume(ANDROID_APP)
        await delivery.register(A, channels=[CHANNEL_WEBPUSH])
        await refresh(delivery)
        await delivery.advance(16, steps=2)
        first = await delivery.send(A)
        await delivery.expect_outcomes(OutcomeRow(first, A, CLAIMED))
        await answer(toy, "who are you")
        second = await delivery.send(A)
        await delivery.advance(2)
        await delivery.expect_outcomes(OutcomeRow(first, A, RETURNED, "who are you"))
        assert not toy.pending
        await delivery.advance(25, steps=5)
        await delivery.expect_outcomes(OutcomeRow(first, A, CLAIMED), OutcomeRow(second, A, CLAIMED))
        await answer(toy, "")
        await delivery.expect_outcomes(OutcomeRow(second, A, HANDED_OVER))


async def test_the_app_says_by_which_way_pushes_without_a_route_go_and_changes_it_meanwhile(
    delivery: DeliveryHarness, toy: Toy, registry: LocalServer
) -> None:
    own = App(appkey=APP, platform=PLATFORM_ANDROID, channel_route=ROUTE_OWN)
    vendor = App(appkey=APP, platform=PLATFORM_ANDROID, channel_route=ROUTE_VENDOR)
    async with delivery.running(registry=registry.channel()), delivery.gateway() as gateway:
        await delivery.resume(own)
        await delivery.register(A, channels=[CHANNEL_WEBPUSH])
        await refresh(delivery)
        await delivery.advance(60, steps=6)
        waiting = await delivery.send(A)
        named = await delivery.send(A, channel=ChannelOptions(route=ROUTE_AUTO))
        await delivery.expect_outcomes(OutcomeRow(named, A, CLAIMED))
        await answer(toy, "too long")
        await delivery.advance(60, steps=6)
        await delivery.expect_outcomes(OutcomeRow(named, A, RETURNED, "too long"))
        assert not toy.pending

        await delivery.resume(vendor)
        await refresh(delivery)
        await delivery.expect_outcomes(OutcomeRow(named, A, CLAIMED), OutcomeRow(waiting, A, CLAIMED))
        await answer(toy, "too long")
        await delivery.expect_outcomes(*(OutcomeRow(msgid, A, RETURNED, "too long") for msgid in (named, waiting)))
        gateway.connect((1, A))
        await gateway.wait_count(2)

        withheld = await delivery.send(A)
        await delivery.expect_outcomes(*(OutcomeRow(msgid, A, CLAIMED) for msgid in (named, waiting, withheld)))


async def test_what_the_route_withheld_from_a_connected_device_is_sent_once_the_app_has_another_one(
    delivery: DeliveryHarness, toy: Toy, registry: LocalServer
) -> None:
    toy.limits = toy.limits._replace(window=1)
    vendor = App(appkey=APP, platform=PLATFORM_ANDROID, channel_route=ROUTE_VENDOR)
    async with delivery.running(registry=registry.channel()), delivery.gateway() as gateway:
        await delivery.resume(vendor)
        await delivery.register(A, channels=[CHANNEL_WEBPUSH])
        await refresh(delivery)
        await delivery.advance(16, steps=2)
        first = await delivery.send(A)
        await delivery.expect_outcomes(OutcomeRow(first, A, CLAIMED))
        gateway.connect((1, A))
        await run_ready_tasks()
        assert toy.pending[0].is_wanted()  # its request leaves, so it stays with the channel
        second = await delivery.send(A)
        await delivery.advance(20, steps=2)
        assert gateway.received == []
        await delivery.resume(ANDROID_APP)
        await refresh(delivery)
        await gateway.expect((1, second))


class ScriptedChannel:
    """A channel with one app set up."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.window = WINDOW
        self.handed_over: list[ClaimedMessage] = []

    def is_set_up(self, appkey: str) -> bool:
        return appkey == APP

    def claim_window(self, appkey: str) -> int:
        return self.window

    def hand_over(self, messages: list[ClaimedMessage], claims: object) -> None:
        self.handed_over += messages


def test_channels_are_tried_in_order_without_stopped_ones_and_gone_ones_are_given_up() -> None:
    webpush, fcm, hms = (ScriptedChannel(each) for each in (CHANNEL_WEBPUSH, CHANNEL_FCM, CHANNEL_HMS))
    channels: Any = [webpush, fcm, hms]
    apps: Any = SimpleNamespace(all=lambda: [ANDROID_APP, App(appkey="2")])
    senders = ServiceSenders(channels, apps)
    fcm.window = 0
    assert senders.of_app(APP) == [CHANNEL_HMS, CHANNEL_FCM, CHANNEL_WEBPUSH]
    assert senders.usable(APP) == [CHANNEL_HMS, CHANNEL_WEBPUSH]
    assert (senders.of_app("2"), senders.appkeys) == ([], [APP])

    push: Any = None
    messages = [ClaimedMessage(push, 0, 1, 7, channel) for channel in (CHANNEL_WEBPUSH, CHANNEL_HMS, 99)]
    given_up: list[tuple[int, ClaimAnswer]] = []
    claims: Any = SimpleNamespace(answered=lambda message, answer: given_up.append((message.channel, answer)))
    senders.send(messages, claims)
    assert (webpush.handed_over, hms.handed_over) == (messages[:1], messages[1:2])
    assert given_up == [(99, ClaimAnswer.GIVEN_UP)]


def test_only_new_addresses_are_looked_at_and_those_of_a_targeting_that_is_away_stay() -> None:
    apps: Any = None
    senders = ServiceSenders([], apps)
    web: int = CHANNEL_WEBPUSH
    first = {(0, web): BitMap([1]), (1, web): BitMap([5])}
    assert senders.note_addressed(APP, first) == {0: BitMap([1]), 1: BitMap([5])}
    assert senders.note_addressed(APP, {(0, web): BitMap([1, 2])}) == {0: BitMap([2])}
    assert senders.note_addressed(APP, {(0, web): BitMap([2])}) == {}
    assert (senders.addressed((APP, 0), web), senders.addressed((APP, 1), web)) == (BitMap([2]), BitMap([5]))
    senders.forget_addressed(but=["2"])
    assert senders.addressed((APP, 1), web) == BitMap()
