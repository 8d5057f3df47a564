"""Hands messages over to channels: writes each claim to the log before the request leaves, and records the answer.

due_hand_overs.py ─▶ claims ─▶ deliveries ─▶ the channels' senders ─▶ answers ─▶ deliveries

A claimed message is with one channel until that one has answered for certain. A sender repeats a request that had no
answer, with the fields by which the vendor recognises a repetition; a process that finds claims of a former one does
the same. A refusal is certain only if no earlier request of the claim may have arrived.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.delivery.channels import ClaimAnswer, ClaimedMessage, Claims
from services.delivery.channels.sockets.fanout import Fanout
from services.delivery.due_hand_overs import Claim, DueHandOvers, UsableChannels
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.domain.recorded_reasons import ChannelAcceptanceUnknown, FixedReason
from services.process.clock import Clock, wait_for_first

_SENT_AT_ONCE = 250
"""Messages that are given to a sender before other tasks run."""

_FAILED = OutcomeKind.OUTCOME_KIND_FAILED
_RETURNED = OutcomeKind.OUTCOME_KIND_RETURNED
_HANDED_OVER = OutcomeKind.OUTCOME_KIND_HANDED_OVER


class ChannelSenders(UsableChannels, Protocol):
    """The senders of all channels: what they can do, and the requests that they make."""

    def window(self, appkey: str, channel: int) -> int:
        """Return how many messages of the app the channel may have claimed and not answered; further ones wait."""

    def send(self, messages: Sequence[ClaimedMessage], claims: Claims) -> None:
        """Queue these claimed messages, which are answered to `claims`; the order does not matter.

        Requests wait while their app is paused.
        """


class HandOvers:
    """A service that claims what is due, has it sent, and records the answers."""

    name = "delivery hand-overs"

    def __init__(
        self,
        state: DeliveryState,
        due: DueHandOvers,
        fanout: Fanout,
        recorder: OutcomeRecorder,
        senders: ChannelSenders,
        clock: Clock,
    ) -> None:
        self._state = state
        self._due = due
        self._fanout = fanout
        self._recorder = recorder
        self._senders = senders
        self._clock = clock
        self._open: dict[tuple[int, int, int, int], bool] = {}
        """The messages that senders have, by key: whether a request may have arrived without an answer."""

        self._open_count: Counter[tuple[str, int]] = Counter()
        self._returned: list[ClaimedMessage] = []
        self._has_work = asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
        await self.begin()
        ready.set()
        while True:
            while await self.step():
                await asyncio.sleep(0)
            await wait_for_first(
                self._clock, self._due.next_ms(self._clock.now_ms()), self._has_work, self._due.changed
            )

    async def begin(self) -> None:
        """Have the claims of a former process sent again: it may have made their requests."""
        self._due.begin(self._clock.now_ms())
        found = [
            Claim(push, partition, msgid, channel, numbers)
            for first, partition, msgid, channel, numbers in self._state.hand_overs.claims()
            if (push := self._state.started.get(first)) is not None
        ]
        for claim in found:
            await self._recorder.wait_capacity()
            await self._send(claim, is_uncertain=True)

    async def step(self) -> bool:
        """Claim what is due now and have it sent, and see to what was returned; return whether there was anything."""
        await self._recorder.wait_capacity()
        self._has_work.clear()
        self._due.changed.clear()
        returned, self._returned = self._returned, []
        claims = self._due.take(self._clock.now_ms(), self._room)
        for claim in claims:
            self._recorder.record_claim(
                *(claim.partition, claim.push.send.appkey, claim.msgid, claim.numbers),
                *(self._clock.now_ms(), claim.channel),
            )
        if claims or returned:
            await self._recorder.wait_recorded()
        for claim in claims:
            await self._send(claim, is_uncertain=False)
        self._see_to_returned(returned)
        for push in self._due.take_released():
            self._fanout.send_again(push, list(push.active_parts))
        return bool(claims or returned)

    def may_request(self, message: ClaimedMessage) -> bool:
        """Whether the channel still has the message to show: it is pending, and its push has not ended."""
        push, partition, number, msgid, channel = message
        return (
            self._state.may_send(push, self._clock.now_ms())
            and self._state.hand_overs.is_claimed(push.msgid, partition, msgid, number, channel)
            and not self._recorder.has_unwritten_final(partition, msgid, number)
        )

    def is_uncertain(self, message: ClaimedMessage) -> bool:
        """Whether a request may have arrived without an answer, also one of a former process."""
        return self._open.get(message.key, True)

    def answered(self, message: ClaimedMessage, answer: ClaimAnswer, reason: str = "") -> None:
        """Record a sender's answer; a late or repeated one, after the last word on the message, is ignored."""
        push, partition, number, msgid, channel = message
        if (is_uncertain := self._open.get(message.key)) is None:
            return
        if answer is ClaimAnswer.UNANSWERED:
            self._open[message.key] = True
            return
        del self._open[message.key]
        self._open_count[push.send.appkey, channel] -= 1
        self._has_work.set()
        is_claimed = self._state.hand_overs.is_claimed(push.msgid, partition, msgid, number, channel)
        if not is_claimed or self._recorder.has_unwritten_final(partition, msgid, number):
            return  # the device has acknowledged it meanwhile, or it was dropped
        kind, reason = _outcome(answer, reason, is_uncertain=is_uncertain)
        now_ms = self._clock.now_ms()
        self._recorder.record_answer(partition, push.send.appkey, msgid, number, kind, now_ms, reason, channel)
        if kind == _RETURNED:
            self._returned.append(message)

    def channels_changed(self, appkey: str, *, was_vendor_first: bool = False) -> None:
        """Look at what is pending for the app's devices: its channels, their addresses or its route have changed.

        `was_vendor_first`: the app's route was ROUTE_VENDOR until now.
        """
        self._due.reconsider(appkey, was_vendor_first=was_vendor_first)
        self._has_work.set()

    def _room(self, appkey: str, channel: int) -> int:
        return self._senders.window(appkey, channel) - self._open_count[appkey, channel]

    async def _send(self, claim: Claim, *, is_uncertain: bool) -> None:
        """Give the messages to the channel's sender, but for those that may not be requested any more.

        Between slices other tasks run.
        """
        push, partition, msgid, channel, numbers = claim
        self._open_count[push.send.appkey, channel] += len(numbers)
        for at in range(0, len(numbers), _SENT_AT_ONCE):
            to_send = []
            for number in numbers[at : at + _SENT_AT_ONCE]:
                message = ClaimedMessage(push, partition, number, msgid, channel)
                self._open[message.key] = is_uncertain
                if self.may_request(message):
                    to_send.append(message)
                else:
                    self.answered(message, ClaimAnswer.GIVEN_UP)
            if to_send:
                self._senders.send(to_send, self)
            await asyncio.sleep(0)

    def _see_to_returned(self, returned: Iterable[ClaimedMessage]) -> None:
        """Let another channel, or the devices' own connections, have the messages; their returns are in the log."""
        for push, partition, number, _, _ in returned:
            if partition in push.active_parts:
                self._due.look_at(push, partition, BitMap([number]))
                self._fanout.send_returned(push, partition, number)


def _outcome(answer: ClaimAnswer, reason: str, *, is_uncertain: bool) -> "tuple[OutcomeKind.ValueType, str]":
    """Return the outcome that follows from the last word on a message, and its reason."""
    match answer:
        case ClaimAnswer.ACCEPTED:
            return _HANDED_OVER, reason
        case ClaimAnswer.FAILED:
            return _FAILED, reason
        case _ if is_uncertain:
            return _FAILED, str(ChannelAcceptanceUnknown(reason))
        case ClaimAnswer.REFUSED:
            return _RETURNED, reason
        case _:
            return _RETURNED, FixedReason.CHANNEL_NOT_ASKED
