"""The running role hands over what is due, and sends over a device's connection only what no channel has."""

from collections.abc import Sequence

import pytest
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.apps_pb2 import ROUTE_AUTO, Route
from services.delivery import main
from services.delivery.channels import ClaimAnswer, ClaimedMessage, MessageClaims
from services.delivery.service_senders import ServiceSenders
from services.delivery.state.audience_parts import AppPartition
from services.delivery.state.pushes import StartedPush
from services.domain.recorded_reasons import FixedReason
from testkit.delivery.records import RECEIVED, SENT, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A, B = NumberedDevice(0, 0), NumberedDevice(0, 1)
FIRST, SECOND = 1, 2
CLAIMED, RETURNED = OutcomeKind.OUTCOME_KIND_CLAIMED, OutcomeKind.OUTCOME_KIND_RETURNED
HANDED_OVER, FAILED = OutcomeKind.OUTCOME_KIND_HANDED_OVER, OutcomeKind.OUTCOME_KIND_FAILED


class ScriptedChannels:
    """Two channels on which device A has addresses; a test answers the requests."""

    is_any_usable = True

    def __init__(self) -> None:
        self.requests: list[tuple[ClaimedMessage, MessageClaims]] = []

    def of_app(self, appkey: str) -> Sequence[int]:
        return FIRST, SECOND

    def usable(self, appkey: str) -> Sequence[int]:
        return FIRST, SECOND

    def can_carry(self, channel: int, push: StartedPush) -> bool:
        return True

    def addressed(self, app_partition: AppPartition, channel: int) -> BitMap:
        return BitMap([A.number] if app_partition[1] == A.partition else [])

    def route(self, appkey: str) -> "Route.ValueType":
        return ROUTE_AUTO

    def window(self, appkey: str, channel: int) -> int:
        return 2000

    def send(self, messages: Sequence[ClaimedMessage], claims: MessageClaims) -> None:
        self.requests += [(message, claims) for message in messages]

    def requested(self) -> list[tuple[int, int]]:
        """Return the message id and the channel of each request."""
        return [(message.msgid, message.channel) for message, _ in self.requests]

    def answer(self, answer: ClaimAnswer, reason: str = "") -> None:
        """Answer the latest request."""
        message, claims = self.requests[-1]
        claims.answered(message, answer, reason)


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> ScriptedChannels:
    scripted = ScriptedChannels()
    monkeypatch.setattr(main, "open_senders", lambda *_: scripted)
    monkeypatch.setattr(main, "served_channels", lambda *_: ())
    return scripted


async def test_a_message_is_handed_over_after_the_grace_and_counts_as_received_later(
    delivery: DeliveryHarness, channels: ScriptedChannels
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        msgid = await delivery.send(A, B)
        await delivery.advance(14.9)
        assert channels.requested() == []
        await delivery.advance(0.2)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED))
        await run_ready_tasks()
        assert channels.requested() == [(msgid, FIRST)]

        gateway.connect((1, A), (2, B))
        await gateway.expect((2, msgid))
        channels.answer(ClaimAnswer.ACCEPTED)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, HANDED_OVER))
        gateway.acknowledge((msgid, A), (msgid, A), (msgid, B))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED), OutcomeRow(msgid, B, RECEIVED))
        gateway.acknowledge((msgid, A))
        last = await delivery.send(A)
        await gateway.wait_count(2)
        assert (gateway.received[1].connection, gateway.received[1].msgid) == (1, last)
        assert sorted(await delivery.outcomes(RECEIVED)) == [
            OutcomeRow(msgid, A, RECEIVED),
            OutcomeRow(msgid, B, RECEIVED),
        ]
        await delivery.expect_outcomes(OutcomeRow(msgid, B, SENT), OutcomeRow(last, A, SENT))


async def test_a_phone_that_comes_back_within_the_grace_causes_no_hand_over(
    delivery: DeliveryHarness, channels: ScriptedChannels
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        await delivery.advance(16)
        sent = []
        for connection in range(1, 6):
            gateway.connect((connection, A))
            await run_ready_tasks()
            sent.append(await delivery.send(A))
            gateway.request(disconnected=[connection])
            await run_ready_tasks()
            await delivery.advance(14)
        assert channels.requests == []
        await delivery.advance(2)
        await delivery.expect_outcomes(*(OutcomeRow(msgid, A, CLAIMED) for msgid in sent))
        await run_ready_tasks()
        assert channels.requested() == [(msgid, FIRST) for msgid in sent]


async def test_what_both_channels_refuse_goes_over_the_own_connection(
    delivery: DeliveryHarness, channels: ScriptedChannels
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        msgid = await delivery.send(A)
        await delivery.advance(16)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED))
        await run_ready_tasks()
        channels.answer(ClaimAnswer.REFUSED, "no quota")
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RETURNED, "no quota"))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED), OutcomeRow(msgid, A, CLAIMED))
        await run_ready_tasks()
        assert channels.requested() == [(msgid, FIRST), (msgid, SECOND)]
        gateway.connect((1, A))
        await run_ready_tasks()
        assert gateway.received == []
        channels.answer(ClaimAnswer.REFUSED, "no address")
        await gateway.expect((1, msgid))
        await delivery.advance(30)
        assert len(channels.requests) == 2


async def test_a_postponed_message_is_recalled_when_its_device_connects_and_claimed_again_when_it_leaves(
    delivery: DeliveryHarness, channels: ScriptedChannels
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        msgid = await delivery.send(A)
        await delivery.advance(16)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED))
        await run_ready_tasks()
        first, claims = channels.requests[-1]
        assert claims.begin_request(first)
        channels.answer(ClaimAnswer.POSTPONED, "busy")
        assert claims.may_request(first)
        gateway.connect((1, A))
        await gateway.expect((1, msgid))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RETURNED, FixedReason.RECALLED), OutcomeRow(msgid, A, SENT))
        assert not claims.begin_request(first)

        gateway.request(disconnected=[1])
        await run_ready_tasks()
        await delivery.advance(16)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED), OutcomeRow(msgid, A, CLAIMED))
        await run_ready_tasks()
        assert channels.requested() == [(msgid, FIRST), (msgid, FIRST)]
        assert not claims.begin_request(first)
        claims.answered(first, ClaimAnswer.ACCEPTED)
        assert await delivery.outcomes(HANDED_OVER) == []
        assert claims.begin_request(channels.requests[-1][0])
        channels.answer(ClaimAnswer.ACCEPTED)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, HANDED_OVER))


async def test_a_message_whose_request_has_no_answer_yet_stays_with_the_channel(
    delivery: DeliveryHarness, channels: ScriptedChannels
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        postponed, unanswered = await delivery.send(A), await delivery.send(A)
        await delivery.advance(16)
        await delivery.expect_outcomes(OutcomeRow(postponed, A, CLAIMED), OutcomeRow(unanswered, A, CLAIMED))
        await run_ready_tasks()
        (first, claims), (second, _) = channels.requests
        assert claims.begin_request(first)
        assert claims.begin_request(second)
        gateway.connect((1, A))
        await run_ready_tasks()
        for answer in (ClaimAnswer.UNANSWERED, ClaimAnswer.POSTPONED):
            claims.answered(second, answer, "reset")
        await run_ready_tasks()
        assert gateway.received == []
        assert claims.begin_request(second)
        claims.answered(first, ClaimAnswer.POSTPONED, "busy")
        await gateway.expect((1, postponed))
        gateway.acknowledge((postponed, A))
        await delivery.expect_outcomes(OutcomeRow(postponed, A, RECEIVED))
        claims.answered(second, ClaimAnswer.REFUSED, "busy")
        await delivery.expect_outcomes(
            OutcomeRow(postponed, A, RETURNED, FixedReason.RECALLED),
            OutcomeRow(unanswered, A, FAILED, "unknown whether the channel shows it: busy"),
        )


async def test_a_channel_cannot_have_itself_asked_again_by_its_words(
    delivery: DeliveryHarness, channels: ScriptedChannels
) -> None:
    async with delivery.running():
        await delivery.register(A)
        msgid = await delivery.send(A)
        for channel in (FIRST, SECOND):
            await delivery.advance(16)
            await delivery.expect_outcomes(*[OutcomeRow(msgid, A, CLAIMED)] * channel)
            await run_ready_tasks()
            channels.answer(ClaimAnswer.REFUSED, FixedReason.RECALLED)
        await delivery.expect_outcomes(*[OutcomeRow(msgid, A, RETURNED, FixedReason.OTHER)] * 2)
        await delivery.advance(60)
        assert channels.requested() == [(msgid, FIRST), (msgid, SECOND)]


@pytest.mark.parametrize("has_snapshot", [True, False])
async def test_the_next_process_knows_what_was_recalled(
    delivery: DeliveryHarness, channels: ScriptedChannels, has_snapshot: bool
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        msgid = await delivery.send(A)
        await delivery.advance(16)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED))
        gateway.connect((1, A))
        await gateway.expect((1, msgid))
    if not has_snapshot:
        delivery.write_snapshot(None)
    asked = len(channels.requests)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.expect((1, msgid))
        await delivery.advance(60)
        assert len(channels.requests) == asked


@pytest.mark.parametrize("has_snapshot", [True, False])
async def test_the_next_process_repeats_the_request_and_does_not_trust_a_refusal(
    delivery: DeliveryHarness, channels: ScriptedChannels, has_snapshot: bool
) -> None:
    async with delivery.running():
        await delivery.register(A)
        msgid = await delivery.send(A)
        await delivery.advance(16)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED))
        await run_ready_tasks()
    if not has_snapshot:
        delivery.write_snapshot(None)
    async with delivery.running(), delivery.gateway() as gateway:
        assert channels.requested() == [(msgid, FIRST), (msgid, FIRST)]
        gateway.connect((1, A))
        await run_ready_tasks()
        channels.answer(ClaimAnswer.REFUSED, "no quota")
        reason = "unknown whether the channel shows it: no quota"
        await delivery.expect_outcomes(OutcomeRow(msgid, A, FAILED, reason))
        assert gateway.received == []


async def test_claims_of_channels_that_are_gone_end_as_unknown(
    delivery: DeliveryHarness, channels: ScriptedChannels, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with delivery.running():
        await delivery.register(A)
        msgid = await delivery.send(A)
        await delivery.advance(16)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLAIMED))
    monkeypatch.setattr(main, "open_senders", ServiceSenders)
    async with delivery.running():
        await delivery.expect_outcomes(OutcomeRow(msgid, A, FAILED, "unknown whether the channel shows it"))
