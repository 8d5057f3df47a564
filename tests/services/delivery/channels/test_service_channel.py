"""A push service of a few lines, which is not Apple's, through all that push services share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from prometheus_client import Gauge
from pyroaring import BitMap
from structlog.testing import capture_logs

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import Message, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App, Channel
from protos.registry.v1.devices_pb2 import Address, DeviceCommand
from protos.registry.v1.registry_pb2 import (
    GetAddressesRequest,
    GetAddressesResponse,
    GetTokensRequest,
    GetTokensResponse,
)
from services.delivery.channels import (
    AddressRemoval,
    AppLimits,
    CircuitChange,
    ClaimAnswer,
    ClaimedMessage,
    DelayDevice,
    Encoded,
    PendingRequest,
    Reaction,
    Recipient,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
)
from services.delivery.channels.addresses import cleared_address
from services.delivery.channels.health import MAX_ALARMS, Alarms, Stopped
from services.delivery.channels.service_channel import _AT_ONCE, ServiceChannel
from services.delivery.state.audience_parts import BitmapAudience
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.addresses import address_hash
from services.domain.command_writer import Command, device_command
from services.domain.recorded_reasons import FixedReason
from services.errors import UnavailableError
from services.process.clock import ManualClock
from testkit.delivery.records import APP, START_MS
from testkit.waiting import run_ready_tasks, until_holds

NO_ADDRESS = 100
"""The first device without an address on the channel."""

SENT, FAILED = OutcomeKind.OUTCOME_KIND_SENT, OutcomeKind.OUTCOME_KIND_FAILED
EXPIRED = OutcomeKind.OUTCOME_KIND_EXPIRED
WINDOW = 3


class ToyAnswer(NamedTuple):
    reason: str


class ToyEncoder(NamedTuple):
    text: str

    def encode(self, msgid: int, recipient: Recipient, credentials: str, /) -> Encoded[str]:
        return Encoded(f"{recipient.address}: {self.text} ({msgid}, {credentials})", badge=5)


REACTIONS = {
    "": Reaction(RecordSent(), CircuitChange.CLOSE),
    "too long": Reaction(RecordFailed(), alarm="a message is too long"),
    "busy": Reaction(RetryLater(at_least_ms=7_000)),
    "reset": Reaction(RetryLater(is_unknown=True)),
    "slow down": Reaction(DelayDevice()),
    "gone": Reaction(RemoveAddress(registered_before_ms=9)),
    "wrong category": Reaction(ResendOnce("no category")),
    "who are you": Reaction(RetryLater(), CircuitChange.OPEN),
}


class Toy:
    """The push service, its sender and its simulator: what is submitted waits in `pending` for the test's answer."""

    channel: "Channel.ValueType" = Channel.CHANNEL_APNS
    title = "Toy"
    limits = AppLimits(window=WINDOW)
    no_credentials = "set the toy's key"

    def __init__(self) -> None:
        self.apps_stopped = Gauge("toy_apps_stopped", "-", registry=None)
        self.pending: list[PendingRequest[str, ToyAnswer]] = []
        self.variants: list[frozenset[str]] = []
        self.key: str | None = "key"
        self.slow: set[str] = set()
        """Addresses at a server of their own."""

    def open(self, is_in_use: Callable[[str], bool]) -> None:
        pass

    async def close(self) -> None:
        pass

    def can_carry(self, push: StartedPush) -> bool:
        return True

    def server(self, recipient: Recipient) -> str:
        return "slow" if recipient.address in self.slow else ""

    def credentials_of(self, app: App) -> str | None:
        return self.key

    def encoder(self, push: StartedPush) -> ToyEncoder:
        return ToyEncoder(push.send.message.content)

    def sender(self, credentials: str, history: RetryHistory) -> "Toy":
        self.variants.append(history.variants)
        return self

    def submit(self, pending: PendingRequest[str, ToyAnswer], /) -> None:
        self.pending.append(pending)

    def react(
        self, answer: ToyAnswer, history: RetryHistory, recipient: Recipient, credentials: str | None
    ) -> Reaction:
        return REACTIONS[answer.reason]

    def removal(self, removal: AddressRemoval) -> Command:
        return device_command(DeviceCommand(appkey=removal.recipient.appkey, token=removal.recipient.address))


class Harness:
    """A ServiceChannel of the toy, with the registry, the log and the recorder replaced by lists."""

    def __init__(self, channel: "Channel.ValueType" = Channel.CHANNEL_APNS, toy: Toy | None = None) -> None:
        self.clock = ManualClock(START_MS)
        self.toy = toy or Toy()
        self.toy.channel = channel
        self.claims: list[tuple[int, str, str]] = []
        self.is_registry_away = False
        self.not_wanted: set[int] = set()
        self.uncertain: set[int] = set()
        self.removed: list[str] = []
        self.outcomes: list[tuple[int, int, str, int | None]] = []
        self.services: list[Channel.ValueType | None] = []
        stubs: Any = SimpleNamespace(
            append=self._append,
            owner=lambda role, partition: SimpleNamespace(unary_unary=lambda *_, **__: self._tokens),
            get=lambda appkey: App(appkey=appkey),
            is_paused=lambda appkey: False,
            pauses_changed=asyncio.Event(),
            record_final=self._record,
            has_unwritten_final=lambda *message: False,
            wait_capacity=lambda: asyncio.sleep(0),
        )
        self.channel: ServiceChannel[str, str, ToyAnswer] = ServiceChannel(
            self.toy, stubs, DeliveryState([0]), stubs, stubs, stubs, Alarms(self.clock), self.clock, 1
        )

    async def _append(self, commands: list[Command]) -> None:
        self.removed += [command.envelope.token for command in commands]

    async def _tokens(
        self, request: GetTokensRequest | GetAddressesRequest, **_: object
    ) -> GetTokensResponse | GetAddressesResponse:
        if self.is_registry_away:
            raise UnavailableError("away")
        if isinstance(request, GetAddressesRequest):
            assert request.channel == self.toy.channel
            return GetAddressesResponse(addresses=[self._address(number) for number in request.numbers])
        return GetTokensResponse(tokens=[f"d{n}" for n in request.numbers], active_ms=[0 for _ in request.numbers])

    def _record(
        self,
        partition: int,
        appkey: str,
        msgid: int,
        number: int,
        kind: int,
        at: int,
        reason: str,
        badge: int | None,
        service: "Channel.ValueType | None",
        *,
        carries_msgid: bool,
    ) -> None:
        assert not carries_msgid
        self.outcomes.append((number, kind, reason, badge))
        self.services.append(service)

    async def start(self, devices: int, period_s: int = 3600) -> None:
        send = SendPush(msgid=7, appkey=APP, platform=PLATFORM_IOS, message=Message(content="hello"))
        push = StartedPush(send, 0, START_MS + 1000 * period_s)
        push.active_parts[0] = BitmapAudience(7, BitMap(range(devices)), BitMap())
        self.channel.start(push, [0])
        await run_ready_tasks()

    def _address(self, number: int) -> Address:
        return Address(address=f"https://{number}", p256dh=b"p", auth=b"a") if number < NO_ADDRESS else Address()

    # --- claimed messages

    async def hand_over(self, *devices: int, period_s: int = 3600) -> None:
        send = SendPush(msgid=7, appkey=APP, message=Message(content="hello"))
        push = StartedPush(send, 0, START_MS + 1000 * period_s)
        self.channel.hand_over([ClaimedMessage(push, 0, n, 7, self.toy.channel) for n in devices], self)
        await run_ready_tasks()

    def may_request(self, message: ClaimedMessage) -> bool:
        return message.number not in self.not_wanted and message.push.expires_ms > self.clock.now_ms()

    def begin_request(self, message: ClaimedMessage) -> bool:
        return self.may_request(message)

    def is_uncertain(self, message: ClaimedMessage) -> bool:
        return message.number in self.uncertain

    def answered(self, message: ClaimedMessage, answer: ClaimAnswer, reason: str = "") -> None:
        self.claims.append((message.number, answer.name, reason))
        if answer is ClaimAnswer.UNANSWERED:
            self.uncertain.add(message.number)

    async def answer(self, *reasons: str) -> None:
        """Answer the oldest requests that are pending."""
        for reason in reasons:
            self.toy.pending.pop(0).answered(ToyAnswer(reason))
        await run_ready_tasks()

    async def move(self, seconds: float) -> None:
        self.clock.move(seconds)
        await run_ready_tasks()


@contextlib.asynccontextmanager
async def running(harness: Harness) -> AsyncIterator[Harness]:
    ready = asyncio.Event()
    running = asyncio.create_task(harness.channel.run(ready))
    await ready.wait()
    yield harness
    harness.toy.pending.clear()
    for app in harness.channel._apps.values():
        app._window.empty.set()  # nothing to wait for at the stop
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with running(Harness()) as harness:
        yield harness


@pytest.fixture
async def web() -> AsyncIterator[Harness]:
    """A harness whose channel has addresses, and takes over messages that it has claimed."""
    async with running(Harness(Channel.CHANNEL_WEBPUSH)) as harness:
        yield harness


async def test_messages_are_encoded_sent_and_recorded_within_the_window(harness: Harness) -> None:
    await harness.start(5)
    assert [pending.request for pending in harness.toy.pending] == [f"d{n}: hello (7, key)" for n in range(WINDOW)]
    await harness.answer("", "too long", "")
    assert harness.outcomes == [(0, SENT, "", 5), (1, FAILED, "too long", None), (2, SENT, "", 5)]
    await harness.answer("", "")
    assert [number for number, kind, *_ in harness.outcomes if kind == SENT] == [0, 2, 3, 4]
    assert harness.services == [Channel.CHANNEL_APNS] * 5
    assert harness.channel.is_idle


async def test_a_retry_waits_for_its_back_off_and_for_what_the_service_asks(harness: Harness) -> None:
    await harness.start(1)
    for reason, wait_s in (("busy", 7), ("reset", 2), ("slow down", 4), ("busy", 8)):
        await harness.answer(reason)
        await harness.move(wait_s - 0.001)
        assert not harness.toy.pending, reason
        await harness.move(0.001)
        assert len(harness.toy.pending) == 1, reason
    await harness.answer("")
    assert harness.outcomes == [(0, SENT, "", 5)]


async def test_a_push_that_expires_before_its_retry_fails_only_if_it_may_have_been_accepted(harness: Harness) -> None:
    await harness.start(2, period_s=3)
    await harness.answer("busy", "reset")
    refused = (0, EXPIRED, "refused until it expired: busy", None)
    assert harness.outcomes == [refused]
    await harness.move(1)
    await harness.answer("busy")
    assert harness.outcomes == [refused, (1, FAILED, "unknown: reset", None)]
    assert harness.channel.is_idle


async def test_a_message_is_sent_again_at_once_in_another_way(harness: Harness) -> None:
    await harness.start(1)
    await harness.answer("wrong category")
    await harness.answer("")
    assert harness.toy.variants == [frozenset(), {"no category"}]
    assert harness.outcomes == [(0, SENT, "", 5)]


async def test_an_invalid_address_is_removed_before_its_outcome_is_recorded(harness: Harness) -> None:
    await harness.start(1)
    await harness.answer("gone")
    assert (harness.removed, harness.outcomes) == (["d0"], [(0, FAILED, "gone", None)])


async def test_refused_credentials_stop_the_app_until_a_probe_is_accepted(harness: Harness) -> None:
    await harness.start(4)
    await harness.answer("who are you")
    assert harness.channel.stopped(APP) == Stopped(START_MS, "who are you")
    assert not harness.toy.pending[0].is_wanted()
    for pending in harness.toy.pending[:]:
        harness.toy.pending.remove(pending)
        pending.skipped()
    await harness.move(4.9)
    assert not harness.toy.pending
    await harness.move(0.1)
    assert len(harness.toy.pending) == 1
    await harness.answer("")
    assert harness.channel.stopped(APP) is None
    await harness.answer("", "", "")
    assert sorted(number for number, *_ in harness.outcomes) == [0, 1, 2, 3]


async def test_without_credentials_pushes_wait_and_an_operator_is_told(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.toy.key = None
    await harness.start(1)
    assert not harness.toy.pending
    assert "set the toy's key" in capsys.readouterr().out
    harness.toy.key = "new key"
    await harness.move(1)
    assert [pending.request for pending in harness.toy.pending] == ["d0: hello (7, new key)"]
    await harness.answer("")


def test_alarms_are_logged_once_a_minute_and_the_oldest_of_too_many_are_forgotten() -> None:
    clock = ManualClock(0)
    alarms = Alarms(clock)
    with capture_logs() as said:
        alarms.log("1", "refused", "first")
        alarms.log("1", "refused", "first")
        for number in range(MAX_ALARMS):
            alarms.log("1", "refused", str(number))
        alarms.log("1", "refused", "first")
        alarms.log("1", "refused", str(MAX_ALARMS - 1))
        clock.move(60)
        alarms.log("1", "refused", "first")
    reasons = [entry["reason"] for entry in said]
    assert reasons == ["first", *map(str, range(MAX_ALARMS)), "first", "first"]


# Messages that the channel has claimed.


async def test_claimed_messages_are_sent_to_addresses_and_their_answers_told(web: Harness) -> None:
    await web.hand_over(0, 1, 2, NO_ADDRESS, 3)
    assert [pending.request for pending in web.toy.pending] == [f"https://{n}: hello (7, key)" for n in range(WINDOW)]
    await web.answer("", "too long", "gone")
    await web.answer("")
    assert sorted(web.claims) == [
        (0, "ACCEPTED", ""),
        (1, "REFUSED", "too long"),
        (2, "REFUSED", "gone"),
        (3, "ACCEPTED", ""),
        (NO_ADDRESS, "REFUSED", FixedReason.NO_ADDRESS),
    ]
    assert web.removed == ["https://2"]
    assert web.outcomes == []
    assert web.channel.is_idle


async def test_other_tasks_run_while_many_claimed_messages_are_made(web: Harness) -> None:
    web.toy.limits = AppLimits(window=2 * _AT_ONCE)
    handing_over = asyncio.create_task(web.hand_over(*range(2 * _AT_ONCE)))
    in_turns = [0]
    while len(web.toy.pending) < 2 * _AT_ONCE:
        await asyncio.sleep(0)
        in_turns.append(len(web.toy.pending))
    assert all(later - earlier <= _AT_ONCE for earlier, later in pairwise(in_turns))
    await handing_over
    assert not web.channel.is_idle
    await web.answer(*[""] * (2 * _AT_ONCE))
    assert len(web.claims) == 2 * _AT_ONCE
    assert web.channel.is_idle


async def test_messages_made_after_others_were_answered_keep_their_push_running(web: Harness) -> None:
    web.toy.limits = AppLimits(window=2 * _AT_ONCE)
    handing_over = asyncio.create_task(web.hand_over(*range(2 * _AT_ONCE)))
    while not (made := len(web.toy.pending)):
        await asyncio.sleep(0)
    for pending in web.toy.pending[:made]:
        pending.answered(ToyAnswer(""))
    assert made < 2 * _AT_ONCE
    await handing_over
    assert len(web.toy.pending) == 2 * _AT_ONCE
    assert not web.channel.is_idle


async def test_an_unanswered_request_is_told_at_once_and_repeated_until_the_push_is_over(web: Harness) -> None:
    await web.hand_over(0, 1, period_s=3)
    await web.answer("reset", "busy")
    assert web.claims == [(0, "UNANSWERED", "reset"), (1, "POSTPONED", "busy"), (1, "GIVEN_UP", "busy")]
    await web.move(1)
    await web.answer("busy")
    assert web.claims[3:] == [(0, "POSTPONED", "busy"), (0, "GIVEN_UP", "reset")]
    assert web.channel.is_idle


async def test_a_recalled_message_is_not_requested_again_and_takes_no_memory(web: Harness) -> None:
    web.toy.limits = AppLimits(window=WINDOW, delayed_messages=4)
    await web.hand_over(0)
    web.not_wanted.add(0)  # recalled as soon as it is refused
    await web.answer("busy")
    assert web.claims == [(0, "POSTPONED", "busy"), (0, "GIVEN_UP", "busy")]
    assert web.channel.is_idle

    await web.hand_over(1)
    (sender,) = web.channel._apps.values()
    for number in range(1, 20):
        await web.answer("busy")
        await web.hand_over(number + 1)
        web.not_wanted.add(number)  # its device has connected
    assert len(sender._schedule._delayed) <= 5
    await web.move(7)
    while web.toy.pending:
        pending = web.toy.pending.pop(0)
        if pending.is_wanted():
            assert pending.request == "https://20: hello (7, key)"
            pending.answered(ToyAnswer(""))
        else:
            pending.skipped()
        await run_ready_tasks()
    assert {number for number, answer, _ in web.claims if answer == "GIVEN_UP"} == set(range(20))
    assert web.claims.count((20, "ACCEPTED", "")) == 1
    assert web.channel.is_idle


async def test_claimed_messages_that_were_recalled_before_a_request_do_not_add_up(web: Harness) -> None:
    await web.hand_over(*range(WINDOW))
    (sender,) = web.channel._apps.values()
    for number in range(WINDOW, 60):
        await web.hand_over(number)
        web.not_wanted.add(number)
    assert len(sender._claims) <= 2 * WINDOW + 1
    await web.answer(*[""] * WINDOW)
    assert web.channel.is_idle
    assert {number for number, answer, _ in web.claims if answer == "GIVEN_UP"} == set(range(WINDOW, 60))


def with_slow_server(web: Harness) -> None:
    """Give devices 0 to 49 a server that may hold 2 messages of the 4 of the window."""
    web.toy.slow = {f"https://{number}" for number in range(50)}
    web.toy.limits = AppLimits(window=4, server_window=2, waiting_claims=10)


def requested(web: Harness) -> list[int]:
    """Return the devices of the requests that are not answered."""
    return [int(pending.request.partition(": ")[0].removeprefix("https://")) for pending in web.toy.pending]


async def test_a_slow_server_delays_no_messages_for_others(web: Harness) -> None:
    with_slow_server(web)
    await web.hand_over(*range(6))
    assert (requested(web), web.channel.claim_window(APP)) == ([0, 1], 4 + 4)
    await web.hand_over(50, 51)
    assert requested(web) == [0, 1, 50, 51]
    assert web.claims == [(number, "POSTPONED", "") for number in range(2, 6)]
    web.toy.pending = web.toy.pending[2:] + web.toy.pending[:2]
    await web.answer("", "")
    assert requested(web) == [0, 1]
    web.claims.clear()
    await web.answer("")
    assert (requested(web), web.channel.claim_window(APP)) == ([1, 2], 4 + 3)
    for _ in range(5):
        await web.answer("")
    assert web.claims == [(number, "ACCEPTED", "") for number in range(6)]
    assert web.channel.claim_window(APP) == 4
    assert web.channel.is_idle


async def test_messages_that_wait_for_a_retry_make_room_up_to_a_bound(web: Harness) -> None:
    with_slow_server(web)
    for first in range(50, 66, 4):
        await web.hand_over(*range(first, first + 4))
        await web.answer(*["busy"] * 4)
    assert web.channel.claim_window(APP) == 4 + 10
    await web.move(7)
    while web.toy.pending:
        await web.answer("")
    assert web.channel.claim_window(APP) == 4
    assert web.channel.is_idle


async def test_a_server_takes_the_next_message_where_one_cannot_be_sent(web: Harness) -> None:
    """A message is over, another one's device is delayed; neither holds up those that wait behind it."""
    with_slow_server(web)
    await web.hand_over(2)
    await web.answer("slow down")
    await web.hand_over(0, 1, 2, 3, 4, 5)
    web.not_wanted.add(3)
    await web.answer("", "")
    assert requested(web) == [3, 4]
    web.toy.pending.pop(0).skipped()
    await run_ready_tasks()
    assert requested(web) == [4, 5]
    await web.answer("", "")
    await web.move(1)
    await web.answer("", "")
    assert {number for number, answer, _ in web.claims if answer == "ACCEPTED"} == {0, 1, 2, 4, 5}
    assert web.channel.is_idle


async def test_a_stopped_app_gives_back_what_waits_for_a_server(web: Harness) -> None:
    with_slow_server(web)
    await web.hand_over(*range(6))
    await web.answer("who are you")
    web.toy.pending.pop().skipped()
    await web.move(2)
    assert {number for number, answer, _ in web.claims if answer == "REFUSED"} == set(range(6))
    assert web.channel.is_idle


async def test_recalled_messages_that_wait_for_a_server_take_no_memory(web: Harness) -> None:
    with_slow_server(web)
    await web.hand_over(0, 1)
    (sender,) = web.channel._apps.values()
    waiting = sender._servers["slow"]
    for _ in range(10):
        await web.hand_over(*[2] * 100)
    await until_holds(lambda: len(waiting.waiting) == 1000)
    web.not_wanted.add(2)
    await web.hand_over(3)
    await until_holds(lambda: len(waiting.waiting) == 1)
    for _ in range(3):
        await web.answer("")
    assert web.claims[-1] == (3, "ACCEPTED", "")
    assert web.claims.count((2, "GIVEN_UP", "")) == 1000
    assert web.channel.is_idle


async def test_a_stopped_app_gives_back_what_the_service_certainly_does_not_have(web: Harness) -> None:
    web.uncertain.add(2)
    await web.hand_over(0, 1, 2, 3)
    assert web.channel.claim_window(APP) == WINDOW
    await web.answer("who are you")
    assert (web.channel.claim_window(APP), web.channel.stops(APP)) == (0, 1)
    for pending in web.toy.pending[:]:
        web.toy.pending.remove(pending)
        assert not pending.is_wanted()
        pending.skipped()
    await web.move(2)
    assert web.claims.pop(0) == (0, "POSTPONED", "who are you")
    assert sorted(web.claims) == [(n, "REFUSED", "who are you") for n in (0, 1, 3)]
    await web.move(4)
    assert web.channel.claim_window(APP) == 1
    assert [pending.request for pending in web.toy.pending] == ["https://2: hello (7, key)"]
    await web.answer("")
    assert web.claims[-1] == (2, "ACCEPTED", "")
    assert web.channel.claim_window(APP) == WINDOW


async def test_without_credentials_or_a_registry_claimed_messages_go_back_or_wait(web: Harness) -> None:
    web.is_registry_away = True
    await web.hand_over(0)
    await web.move(1.9)
    assert (web.claims, web.toy.pending, web.channel.is_idle) == ([], [], False)
    web.is_registry_away = False
    await web.move(0.2)
    await web.answer("")
    web.toy.key = None
    web.uncertain.add(1)
    await web.hand_over(1, 2)
    assert not web.channel.is_set_up(APP)
    assert web.claims == [(0, "ACCEPTED", ""), (2, "REFUSED", FixedReason.NO_CREDENTIALS)]
    web.not_wanted.add(1)
    await web.move(2)
    assert web.claims[-1] == (1, "GIVEN_UP", "")
    assert web.channel.is_idle


async def test_a_message_that_is_over_is_not_requested(web: Harness) -> None:
    web.not_wanted.add(0)
    await web.hand_over(0, 1)
    web.not_wanted.add(1)
    pending = web.toy.pending.pop()
    assert not pending.is_wanted()
    pending.skipped()
    await run_ready_tasks()
    assert web.claims == [(0, "GIVEN_UP", ""), (1, "GIVEN_UP", "")]
    assert web.channel.is_idle


def test_the_command_that_removes_an_address_names_the_device_and_the_address() -> None:
    recipient = Recipient(APP, 0, 1, "https://1", token="d1")
    command = cleared_address(Channel.CHANNEL_WEBPUSH, AddressRemoval(recipient, "gone", 9, lambda: None)).envelope
    assert isinstance(command, DeviceCommand)
    assert (command.token, command.clear_address.dead_reason) == ("d1", "gone")
    assert command.clear_address.only_hash == address_hash(Channel.CHANNEL_WEBPUSH, "https://1")
