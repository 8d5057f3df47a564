"""Hands messages over to channels: writes each claim to the log before the request leaves, and records the answer.

due_hand_overs.py ─▶ claims ─▶ deliveries ─▶ the channels' senders ─▶ answers ─▶ deliveries

A claimed message is with one channel until that one has answered for certain. A sender repeats a request that had no
answer, with the fields by which the vendor recognises a repetition; a process that finds claims of a former one does
the same. A refusal is certain only if no earlier request of the claim may have arrived.

A claimed message that the channel certainly does not have, because no request was made, or each was refused until
later, is recalled when its device connects: it is returned, and the own connection shows it at once.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import Protocol

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.delivery.channels import ClaimAnswer, ClaimedMessage, MessageClaims
from services.delivery.channels.sockets.fanout import Fanout
from services.delivery.due_hand_overs import Claim, DueHandOvers, UsableChannels
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.domain.recorded_reasons import ChannelAcceptanceUnknown, FixedReason
from services.process.clock import Clock, wait_for_first
from services.process.crashpoint import Point, reached

_SENT_AT_ONCE = 250
"""Messages that are given to a sender before other tasks run."""

_FAILED = OutcomeKind.OUTCOME_KIND_FAILED
_RETURNED = OutcomeKind.OUTCOME_KIND_RETURNED
_HANDED_OVER = OutcomeKind.OUTCOME_KIND_HANDED_OVER


class ChannelSenders(UsableChannels, Protocol):
    """The senders of all channels: what they can do, and the requests that they make."""

    def window(self, appkey: str, channel: int) -> int:
        """Return how many messages of the app the channel may have claimed and not answered; further ones wait."""

    def send(self, messages: Sequence[ClaimedMessage], claims: MessageClaims) -> None:
        """Queue these claimed messages, which are answered to `claims`; the order does not matter.

        Requests wait while their app is paused.
        """


class _Standing(Enum):
    """The state of a message that a sender has."""

    WAITS = auto()
    """The channel certainly does not have it, and no request is on its way."""

    REQUESTED = auto()
    """A request is on its way, and the channel certainly had none before."""

    UNCERTAIN = auto()
    """A request may have arrived without an answer, also one of a former process."""


@dataclass(slots=True)
class _Open:
    """A message that a sender has."""

    message: ClaimedMessage
    standing: _Standing


class HandOverService:
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
        self._open: dict[DeviceAddress, dict[tuple[int, int], _Open]] = {}
        """The messages that senders have, by device and key."""

        self._claim_numbers = count(1)
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
        """Claim and send the messages that are due now, and handle returned ones; return whether there were any."""
        await self._recorder.wait_capacity()
        self._has_work.clear()
        self._due.changed.clear()
        for device in self._due.take_arrived():
            for each in list(self._open.get(device, {}).values()):
                self._recall(each)
        returned, self._returned = self._returned, []
        claims = self._due.take(self._clock.now_ms(), self._room)
        if claims:
            reached(Point.CLAIM_DECIDED)
        for claim in claims:
            self._recorder.record_claim(
                *(claim.partition, claim.push.send.appkey, claim.msgid, claim.numbers),
                *(self._clock.now_ms(), claim.channel),
            )
        if claims or returned:
            await self._recorder.wait_recorded()
            reached(Point.RETURN_RECORDED if returned else Point.CLAIM_RECORDED)
        for claim in claims:
            await self._send(claim, is_uncertain=False)
        self._see_to_returned(returned)
        for push in self._due.take_released():
            self._fanout.send_again(push, list(push.active_parts))
        return bool(claims or returned)

    def may_request(self, message: ClaimedMessage) -> bool:
        """Whether the channel still has the message to show: it is pending and not recalled, and its push goes on."""
        push, partition, number, msgid, channel, _ = message
        return (
            self._open_of(message) is not None
            and self._state.may_send(push, self._clock.now_ms())
            and self._state.hand_overs.is_claimed(push.msgid, partition, msgid, number, channel)
            and not self._recorder.has_unwritten_final(partition, msgid, number)
        )

    def begin_request(self, message: ClaimedMessage) -> bool:
        """Return `may_request`, and if so, note that a request leaves."""
        if not self.may_request(message):
            return False
        if (found := self._open_of(message)) is not None and found.standing is _Standing.WAITS:
            found.standing = _Standing.REQUESTED
        return True

    def is_uncertain(self, message: ClaimedMessage) -> bool:
        """Whether a request may have arrived without an answer, also one of a former process."""
        found = self._open_of(message)
        return found is None or found.standing is _Standing.UNCERTAIN

    def answered(self, message: ClaimedMessage, answer: ClaimAnswer, reason: str = "") -> None:
        """Record a sender's answer; a late or repeated one, after the last word on the message, is ignored."""
        if (found := self._open_of(message)) is None:
            return
        if answer is ClaimAnswer.UNANSWERED:
            found.standing = _Standing.UNCERTAIN
            self._has_work.set()  # others may be claimed while it waits
        elif answer is ClaimAnswer.POSTPONED:
            if found.standing is _Standing.REQUESTED:
                found.standing = _Standing.WAITS
            self._recall(found)
            self._has_work.set()
        else:
            self._conclude(message, *last_outcome(answer, reason, is_uncertain=found.standing is _Standing.UNCERTAIN))

    def channels_changed(self, appkey: str, *, was_vendor_first: bool = False) -> None:
        """Look at what is pending for the app's devices: its channels, their addresses or its route have changed.

        `was_vendor_first`: the app's route was ROUTE_VENDOR until now.
        """
        self._due.reconsider(appkey, was_vendor_first=was_vendor_first)
        if was_vendor_first:
            self._due.note_arrived(device for device in self._open if device.appkey == appkey)
        self._has_work.set()

    def _room(self, appkey: str, channel: int) -> int:
        return self._senders.window(appkey, channel) - self._open_count[appkey, channel]

    async def _send(self, claim: Claim, *, is_uncertain: bool) -> None:
        """Give the messages to the channel's sender, but for those that may not be requested any more.

        Between slices other tasks run.
        """
        push, partition, msgid, channel, numbers = claim
        claim_number, standing = next(self._claim_numbers), _Standing.UNCERTAIN if is_uncertain else _Standing.WAITS
        self._open_count[push.send.appkey, channel] += len(numbers)
        for at in range(0, len(numbers), _SENT_AT_ONCE):
            to_send = []
            for number in numbers[at : at + _SENT_AT_ONCE]:
                message = ClaimedMessage(push, partition, number, msgid, channel, claim_number)
                opened = _Open(message, standing)
                self._open.setdefault(message.device, {})[message.key] = opened
                if not self.may_request(message):
                    self.answered(message, ClaimAnswer.GIVEN_UP)
                elif not self._recall(opened):  # the device may have connected since the claim
                    to_send.append(message)
            if to_send:
                self._senders.send(to_send, self)
            await asyncio.sleep(0)

    def _open_of(self, message: ClaimedMessage) -> _Open | None:
        return self._open.get(message.device, {}).get(message.key)

    def _recall(self, found: _Open) -> bool:
        """Return the message to the own connection if the channel certainly does not have it; return whether that was
        done.
        """
        push, partition, number, *_ = found.message
        if (
            found.standing is not _Standing.WAITS
            or not self._due.is_own_first(push, partition, number)
            or not self.may_request(found.message)
        ):
            return False
        self._conclude(found.message, _RETURNED, FixedReason.RECALLED)
        return True

    def _conclude(self, message: ClaimedMessage, kind: "OutcomeKind.ValueType", reason: str) -> None:
        """Record the last word on a message, unless it has an end already."""
        push, partition, number, msgid, channel, _ = message
        of_device = self._open[message.device]
        del of_device[message.key]
        if not of_device:
            del self._open[message.device]
        self._open_count[push.send.appkey, channel] -= 1
        self._has_work.set()
        is_claimed = self._state.hand_overs.is_claimed(push.msgid, partition, msgid, number, channel)
        if not is_claimed or self._recorder.has_unwritten_final(partition, msgid, number):
            return  # the device has acknowledged it meanwhile, or it was dropped
        now_ms = self._clock.now_ms()
        self._recorder.record_answer(partition, push.send.appkey, msgid, number, kind, now_ms, reason, channel)
        if kind == _RETURNED:
            self._returned.append(message)

    def _see_to_returned(self, returned: Iterable[ClaimedMessage]) -> None:
        """Let another channel, or the devices' own connections, have the messages; their returns are in the log."""
        for push, partition, number, *_ in returned:
            if partition in push.active_parts:
                self._due.look_at(push, partition, BitMap([number]))
                self._fanout.send_returned(push, partition, number)


def last_outcome(answer: ClaimAnswer, reason: str, *, is_uncertain: bool) -> "tuple[OutcomeKind.ValueType, str]":
    """Return the outcome that follows from the last word on a message, and its reason."""
    match answer:
        case ClaimAnswer.ACCEPTED:
            return _HANDED_OVER, reason
        case ClaimAnswer.FAILED:
            return _FAILED, reason
        case _ if is_uncertain:
            return _FAILED, str(ChannelAcceptanceUnknown(reason))
        case ClaimAnswer.GIVEN_UP if not reason:
            return _RETURNED, FixedReason.CHANNEL_NOT_ASKED
        case _:  # the channel's words are not to be taken for a recall, after which it is asked again
            return _RETURNED, FixedReason.OTHER if reason == FixedReason.RECALLED else reason
