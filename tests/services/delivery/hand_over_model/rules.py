"""The rules of handing messages over, judged by the log and the phones alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind
from protos.push.v1.push_pb2 import IMPORTANCE_HIGH, SendPush
from protos.registry.v1.apps_pb2 import ROUTE_OWN, ROUTE_VENDOR
from services.delivery.channels import ClaimAnswer, ClaimedMessage, MessageClaims
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import DELIVERIES, PUSHES, decode
from services.log.port import Record
from testkit.delivery.records import NumberedDevice

if TYPE_CHECKING:
    from tests.services.delivery.hand_over_model.world import Owner, Phone, World

GRACE_MS = 15_000
CHANNELS = (1, 2, 3)
OneMessage = tuple[int, NumberedDevice]
"""A message id and a device."""

_KIND = OutcomeKind
_LAST_WORDS = frozenset({_KIND.OUTCOME_KIND_HANDED_OVER, _KIND.OUTCOME_KIND_RETURNED, _KIND.OUTCOME_KIND_FAILED})
_FINAL = frozenset(
    {
        *(_KIND.OUTCOME_KIND_HANDED_OVER, _KIND.OUTCOME_KIND_FAILED),
        *(_KIND.OUTCOME_KIND_RECEIVED, _KIND.OUTCOME_KIND_DROPPED),
    }
)


class BrokenRuleError(Exception):
    """A message was shown twice, or is lost, or delivery did what it must not do."""


@dataclass
class Told:
    """What the log tells of one message on one device: the channel that has it, those that returned it, its end.

    `is_claim_decided`: delivery has decided on a claim that the log does not have yet. `is_recalled`: so was decided,
    and no claim since. `on_its_way`: the claim whose request has no answer. `is_uncertain`: the channel may have the
    message.
    """

    is_claim_decided: bool = False
    is_recalled: bool = False
    claimed_by: int = 0
    on_its_way: int = 0
    is_uncertain: bool = False
    returned_by: set[int] = field(default_factory=set)
    final: int = 0
    is_sent: bool = False
    is_received: bool = False


class Rules:
    """Judges each request, send and record as it comes, and each message at the end."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.told: dict[OneMessage, Told] = {}
        self.first_of: dict[int, int] = {}
        self.ended: set[tuple[int, int]] = set()
        self.started: set[tuple[int, int]] = set()

    def broken(self, what: str) -> None:
        raise BrokenRuleError(what)

    def requested(self, send: SendPush, devices: Sequence[NumberedDevice], *, own_ids: bool) -> None:
        for index, device in enumerate(devices):
            msgid = send.msgid + (index if own_ids else 0)
            self.first_of[msgid] = send.msgid
            self.told[msgid, device] = Told()

    # --- as it happens

    def sends(self, msgid: int, phone: "Phone | None") -> None:
        """Delivery sends a message over the phone's own connection."""
        if phone is None:
            return
        told = self.told[msgid, phone.device]
        if told.is_claim_decided:
            self.broken(f"{msgid} sent to {phone.device} while it is being claimed")
        if told.claimed_by:
            self.broken(f"{msgid} sent to {phone.device} while channel {told.claimed_by} has it")
        if told.final:
            self.broken(f"{msgid} sent to {phone.device} after its end {told.final}")

    def claims(self, owner: "Owner", msgid: int, device: NumberedDevice) -> None:
        """Delivery decides that a channel is to show the message."""
        world, send = self._world, self._world.pushes[self.first_of[msgid]]
        phone, now_ms = world.phones[device], world.clock.now_ms()
        if (msgid, device) in owner.acknowledged:
            self.broken(f"{msgid} claimed for {device}, which has acknowledged it")
        route = send.channel.route or world.route
        if route == ROUTE_OWN:
            self.broken(f"{msgid} claimed for {device} against its route")
        if now_ms < owner.began_ms + GRACE_MS:
            self.broken(f"{msgid} claimed for {device} before gateways can have announced their connections")
        self.told[msgid, device].is_claim_decided, self.told[msgid, device].is_recalled = True, False
        if route == ROUTE_VENDOR and not self.told[msgid, device].is_sent:
            return
        if phone.connection and phone.stream is owner.stream:
            self.broken(f"{msgid} claimed for {device}, which is connected")
        if send.channel.importance != IMPORTANCE_HIGH and now_ms < world.left_ms.get(device, 0) + GRACE_MS:
            self.broken(f"{msgid} claimed for {device} within the grace")

    def gives(self, owner: "Owner", message: ClaimedMessage, claims: MessageClaims) -> None:
        """Delivery gives a claimed message to the sender of its channel."""
        phone = self._world.phones[NumberedDevice(message.partition, message.number)]
        is_connected = phone.connection and phone.stream is owner.stream
        route = message.push.send.channel.route or self._world.route
        if is_connected and route != ROUTE_VENDOR and not claims.is_uncertain(message):
            self.broken(f"{message.msgid} on {phone.device}: to be requested although it has connected")

    def recalls(self, msgid: int, device: NumberedDevice) -> None:
        """Delivery decides to return the message to the own connection."""
        if (self._world.pushes[self.first_of[msgid]].channel.route or self._world.route) == ROUTE_VENDOR:
            self.broken(f"{msgid} on {device}: recalled against its route")
        self.told[msgid, device].is_recalled = True

    def requests(self, message: ClaimedMessage) -> None:
        """A request leaves for the vendor."""
        device = NumberedDevice(message.partition, message.number)
        told = self.told[message.msgid, device]
        if told.claimed_by != message.channel:
            self.broken(f"{message.msgid} on {device}: request to channel {message.channel} without a claim in the log")
        if told.final or told.is_received:
            self.broken(f"{message.msgid} on {device}: request after its end")
        if (message.push.msgid, device.partition) in self.ended:
            self.broken(f"{message.msgid} on {device}: request after the end of its push")
        if told.is_recalled:
            self.broken(f"{message.msgid} on {device}: request although it was recalled")
        if told.on_its_way and not told.is_uncertain:
            self.broken(f"{message.msgid} on {device}: request while another one is on its way")
        told.on_its_way = message.claim

    def answers(self, message: ClaimedMessage, answer: ClaimAnswer) -> None:
        """Delivery gets an answer of a vendor, or none in time."""
        told = self.told[message.msgid, NumberedDevice(message.partition, message.number)]
        if told.on_its_way == message.claim:
            told.on_its_way = 0
            told.is_uncertain |= answer is ClaimAnswer.UNANSWERED

    def restarts(self) -> None:
        """Another process owns the partitions: what a former one has asked, and heard, is not known."""
        for told in self.told.values():
            told.is_claim_decided = told.is_recalled = False
            told.on_its_way, told.is_uncertain = 0, bool(told.claimed_by)

    def reads(self, record: Record) -> None:
        """The log has a record."""
        fact = decode(record)
        if record.topic == PUSHES.name:
            kind = fact.WhichOneof("fact")
            (self.started if kind == "started" else self.ended).add((fact.msgid, record.partition))
        elif record.topic == DELIVERIES.name:
            for columns in fact.outcomes.apps:
                for msgid, number, kind, channel, reason in _rows(columns):
                    self._outcome(msgid, NumberedDevice(record.partition, number), kind, channel, reason)

    def _outcome(self, msgid: int, device: NumberedDevice, kind: int, channel: int, reason: str) -> None:
        told, name = self.told[msgid, device], f"{msgid} on {device}"
        if kind == _KIND.OUTCOME_KIND_CLAIMED:
            if told.claimed_by or told.final:
                self.broken(f"{name}: claimed by {channel} while {told}")
            if channel in told.returned_by or len(told.returned_by) >= 2:
                self.broken(f"{name}: claimed by {channel} after {told.returned_by} returned it")
            told.is_claim_decided = False
            told.claimed_by, told.on_its_way, told.is_uncertain = channel, 0, False
            return
        if channel:
            if kind not in _LAST_WORDS:
                self.broken(f"{name}: outcome {kind} of a channel")
            if told.claimed_by != channel and not told.final:
                self.broken(f"{name}: channel {channel} answers {kind} while {told.claimed_by} has it")
            told.claimed_by = 0
            if kind == _KIND.OUTCOME_KIND_RETURNED and reason != FixedReason.RECALLED:
                told.returned_by.add(channel)
        told.is_sent |= kind == _KIND.OUTCOME_KIND_SENT
        if kind == _KIND.OUTCOME_KIND_RECEIVED:
            if told.is_received:
                self.broken(f"{name}: received twice")
            told.is_received = True
        if kind in _FINAL:
            if channel and told.final:
                self.broken(f"{name}: ended twice, by {told.final} and {kind} of channel {channel}")
            told.final = told.final or kind
            told.claimed_by = 0

    # --- at the end

    def check_settled(self) -> None:
        """Half of the phones are connected and have everything; channels have been asked for the others."""
        world = self._world
        for (msgid, device), told in self.told.items():
            first = self.first_of[msgid]
            is_acknowledged = (msgid, device) in world.owner.acknowledged
            if is_acknowledged and told.final == _KIND.OUTCOME_KIND_HANDED_OVER and not told.is_received:
                self.broken(f"{msgid} on {device}: its acknowledgement does not count: {told}")
            push = world.owner.state.started.get(first)
            is_alive = (first, device.partition) in self.started and (first, device.partition) not in self.ended
            if told.final or not is_alive or push is None or not world.owner.state.may_send(push, world.clock.now_ms()):
                continue
            phone, route = world.phones[device], push.send.channel.route or world.route
            addressed = {c for c in CHANNELS if device.number in world.addresses[device.partition, c]}
            usable = addressed - told.returned_by - world.stopped
            may_claim = usable and len(told.returned_by) < 2 and route != ROUTE_OWN
            if world.is_down and (told.claimed_by or world.has_small_window):
                if phone.connection and told.claimed_by and not told.is_uncertain and route != ROUTE_VENDOR:
                    self.broken(f"{msgid} on {device}: not recalled from {told.claimed_by} although it is connected")
                continue
            if told.claimed_by:
                self.broken(f"{msgid} on {device}: channel {told.claimed_by} still has it")
            if phone.connection:
                self.broken(f"{msgid} on {device}: not received although it is connected: {told}, {phone.shown[msgid]}")
            if may_claim:
                self.broken(f"{msgid} on {device}: no channel was asked: {told}")

    def check_ended(self) -> None:
        """Each message has one end, and is shown if its end says so."""
        for (msgid, device), told in self.told.items():
            part = self.first_of[msgid], device.partition
            if part in self.started and not told.final and part not in self.ended:
                self.broken(f"{msgid} on {device}: unaccounted")
            if told.claimed_by:
                self.broken(f"{msgid} on {device}: a claim of channel {told.claimed_by} without an end")
            ways = self._world.phones[device].shown[msgid]
            if told.final == _KIND.OUTCOME_KIND_HANDED_OVER and not [way for way in ways if way]:
                self.broken(f"{msgid} on {device}: handed over and not shown")


def _rows(columns: AppOutcomes) -> "zip[tuple[int, int, int, int, str]]":
    count = len(columns.kinds)
    return zip(
        numpy.frombuffer(columns.msgids, "<u8").tolist(),
        numpy.frombuffer(columns.numbers, "<u4").tolist(),
        columns.kinds,
        columns.channels or bytes(count),
        [("", *columns.reasons)[index] for index in columns.reason_indexes],
        strict=True,
    )
