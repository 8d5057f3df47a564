"""The state of delivery, folded from the topics push-commands, pushes and deliveries.

The life cycle of a push in one partition:

    REQUESTED ── PushStarted ──> STARTED ── PushCancelled, PushFinished ──> ENDED
        │                           └── final outcomes ──> forgotten <───────┤
        └── PushFailed, PushCancelled ───────────────────────> forgotten     └── LATE_MS ──> forgotten

- SendPush requests the push in every owned partition, or in those of its listed devices; a repeated id is ignored.
- PushStarted fixes the audience in the partition. From now on devices may be sent the push.
- PushFailed ends a push where it has not started: its audience could not be resolved.
- CancelPush is kept in `pending_cancels` and stops the sending; delivery then writes PushCancelled for each started
  partition, and where the push is held up, for each other one too. PushFinished is written when the time to live has
  passed.
- An ended partition only counts late acknowledgements, for LATE_MS.
- A partition is forgotten when all its devices have a final outcome, or LATE_MS after it ended; a push with its last
  partition. One with a device that changed its alias waits for a late acknowledgement until it has ended.

A command must be folded before the facts it caused, and a PushStarted before the outcomes of its partition. Requests
that are not decided yet are part of the state, so a restarted process decides them.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, PushFact, PushStarted
from protos.push.v1.push_pb2 import CancelPush, PushCommand
from protos.registry.v1.apps_pb2 import Channel
from services.delivery.state.audience_parts import (
    AppPartition,
    AudiencePart,
    BitmapAudience,
    DeviceAddress,
    ListedAudience,
    alias_of_target,
)
from services.delivery.state.bad_tokens import BadTokens
from services.delivery.state.devices import Backlogs, Badges, ChannelChange, channel_changes, final_outcomes
from services.delivery.state.hand_overs import HandOvers
from services.delivery.state.pushes import (
    LATE_MS,
    DedupeWindow,
    EndedPart,
    PackedPushes,
    PushExpiries,
    StartedPush,
    StartedPushes,
    UnexpiredBroadcasts,
    UnstartedPush,
    channel_of,
    requested_push,
)
from services.delivery.state.sent_messages import SentMessages
from services.log.port import Record
from services.replica.epochs import Epochs


class DeliveryState:
    """The pushes that may still reach a device in the `owned` partitions, and which devices have them."""

    def __init__(self, owned: Iterable[int]) -> None:
        self.owned = frozenset(owned)
        self.epochs = Epochs()
        self.dedupe_window = DedupeWindow()
        self.broadcasts = UnexpiredBroadcasts()
        self.badges = Badges()
        self.bad_tokens = BadTokens()
        self.sent_messages = SentMessages()
        self.apns_apps: set[str] = set()
        self.hand_overs = HandOvers()
        self.requested: dict[int, UnstartedPush] = {}
        self.started = StartedPushes()
        self.pending_cancels: dict[int, int] = {}
        """Offset of the CancelPush by msgid, until the push has ended in all partitions."""
        self.log_ms = 0
        """The latest time of a command; time advances with the log, not with the clock."""
        self._requested_by_alias: dict[DeviceAddress, set[int]] = {}
        self._backlogs = Backlogs()
        self._expiries = PushExpiries(self.started)
        self._forget_times: list[tuple[int, int, int]] = []

    # --- apply

    def apply(self, record: Record, message: Any) -> None:
        """Fold one record of the three topics, unless a former process wrote it. ValueError: its content is invalid."""
        match message:
            case PushCommand() | PushFact() | DeliveryFact() if not self.epochs.admits(record, message):
                pass
            case PushCommand():
                self._apply_command(record.offset, message)
            case PushFact():
                self._apply_push_fact(message)
            case DeliveryFact():
                for outcomes in message.outcomes.apps:
                    self._apply_outcomes(record.partition, record.offset, outcomes)
            case _:
                raise ValueError(f"{record.topic} holds nothing that delivery folds")

    def _apply_command(self, offset: int, command: PushCommand) -> None:
        self.log_ms = max(self.log_ms, command.meta.time_ms)
        self.broadcasts.forget(self.log_ms)
        self._forget_ended()
        kind = command.WhichOneof("command")
        match kind:
            case "send":
                self._request(offset, command)
            case "cancel":
                self._request_cancel(offset, command.cancel)
            case None:
                pass
            case _:
                assert_never(kind)

    def _request(self, offset: int, command: PushCommand) -> None:
        send, msgid = command.send, command.send.msgid
        if channel_of(send) == Channel.CHANNEL_APNS:
            self.apns_apps.add(send.appkey)
        if msgid in self.requested or msgid in self.started or msgid in self.dedupe_window:
            return
        push = requested_push(command, offset, self.owned)
        if not send.audience.HasField("devices"):
            self.broadcasts.add(msgid, send.appkey, push.expires_ms)
        if push.remaining:
            send.ClearField("request_json")
            self.request(push)
        else:
            self.dedupe_window.add(msgid, push.source)

    def request(self, push: UnstartedPush) -> None:
        """Add a push that has not started, from its command or from a snapshot."""
        self.requested[push.send.msgid] = push
        for partition in push.remaining:
            for device in _devices_by_alias(push, partition):
                self._requested_by_alias.setdefault(device, set()).add(push.send.msgid)

    def _request_cancel(self, offset: int, cancel: CancelPush) -> None:
        self.broadcasts.cancel(cancel.msgid, cancel.appkey)
        push = self.requested.get(cancel.msgid) or self.started.get(cancel.msgid)
        if push is not None and push.send.appkey == cancel.appkey and self.is_in_progress(cancel.msgid):
            self.pending_cancels.setdefault(cancel.msgid, offset)

    def _apply_push_fact(self, fact: PushFact) -> None:
        kind = fact.WhichOneof("fact")
        match kind:
            case "started":
                self._start(fact.msgid, fact.partition, fact.started)
            case "cancelled" | "finished":
                self._withdraw(fact.msgid, fact.partition)
                if (push := self.started.get(fact.msgid)) is not None and fact.partition in push.active_parts:
                    self._end(push, fact.partition, fact.meta.time_ms + LATE_MS)
            case "failed":
                self._withdraw(fact.msgid, fact.partition)
            case None:
                pass
            case _:
                assert_never(kind)

    def _start(self, msgid: int, partition: int, started: PushStarted) -> None:
        requested = self.requested.get(msgid)
        if requested is None or partition not in requested.remaining:
            return
        self._leave_partition(requested, partition)
        push = self.started.get(msgid)
        if push is None:
            push = self.started[msgid] = StartedPush(requested.send, requested.offset, started.expires_ms)
        part: AudiencePart
        if push.is_listed:
            part = ListedAudience(requested.targets(partition))
        else:
            part = BitmapAudience(msgid, BitMap.deserialize(started.audience), BitMap())
        self._add_active(push, partition, part)
        self._leave_requested(requested)
        if part.is_concluded:
            self._forget_part(push, partition)
        else:
            self._forget_unneeded(push)

    def _withdraw(self, msgid: int, partition: int) -> None:
        """Never start the push in a partition where it has not started."""
        requested = self.requested.get(msgid)
        if requested is None or partition not in requested.remaining:
            return
        self._leave_partition(requested, partition)
        self._leave_requested(requested)
        if msgid not in self.requested:
            if (push := self.started.get(msgid)) is not None:
                self._forget_unneeded(push)
            else:
                self.pending_cancels.pop(msgid, None)

    def _leave_partition(self, requested: UnstartedPush, partition: int) -> None:
        requested.remaining.discard(partition)
        for device in _devices_by_alias(requested, partition):
            msgids = self._requested_by_alias[device]
            msgids.discard(requested.send.msgid)
            if not msgids:
                del self._requested_by_alias[device]

    def _leave_requested(self, requested: UnstartedPush) -> None:
        """Move on from `requested` once the push has started, or ended, in all its partitions."""
        msgid = requested.send.msgid
        if requested.remaining:
            return
        del self.requested[msgid]
        self.dedupe_window.add(msgid, requested.source)
        if msgid in self.started:
            self._expiries.add(self.started[msgid].expires_ms, msgid)

    def _apply_outcomes(self, partition: int, offset: int, outcomes: AppOutcomes) -> None:
        is_apns = outcomes.appkey in self.apns_apps
        final = final_outcomes(outcomes, is_sent_final=is_apns)
        self.badges.fold(partition, outcomes)
        self.sent_messages.fold(partition, offset, outcomes, is_sent_final=is_apns)
        if is_apns:
            self.bad_tokens.fold(partition, outcomes)
        else:
            for change in channel_changes(outcomes):
                self._change_channel(outcomes.appkey, partition, change)
        for by_msgid, is_withdrawn in ((final.withdrawn, True), (final.concluded, False)):
            for msgid, numbers in by_msgid.items():
                push = self.started.holding(msgid)
                if push is not None and push.send.appkey == outcomes.appkey:
                    self._conclude(push, partition, msgid, numbers, is_withdrawn)

    def _change_channel(self, appkey: str, partition: int, change: ChannelChange) -> None:
        """Fold a claim of messages without a final outcome, or the return or the recall of such a claim."""
        kind, channel, msgid, numbers, is_recalled = change
        push = self.started.holding(msgid)
        if push is None or push.send.appkey != appkey or (part := push.part(partition)) is None:
            return
        if kind == OutcomeKind.OUTCOME_KIND_CLAIMED:
            numbers = part.pending_of(msgid, numbers)
            self.hand_overs.claim(push.msgid, partition, msgid, channel, numbers)
        elif is_recalled:
            self.hand_overs.recall(push.msgid, partition, msgid, channel, numbers)
        else:
            self.hand_overs.give_back(push.msgid, partition, msgid, channel, numbers)

    def _conclude(
        self, push: StartedPush, partition: int, msgid: int, numbers: Sequence[int], is_withdrawn: bool
    ) -> None:
        part = push.part(partition)
        if part is None:
            return
        if is_withdrawn and isinstance(part, ListedAudience):
            part.withdraw(msgid, numbers)
        else:
            part.conclude(msgid, numbers)
        self.hand_overs.conclude(push.msgid, partition, msgid, numbers)
        if isinstance(part, ListedAudience) and partition in push.active_parts:
            done = [number for number in numbers if number not in part.targets]
            self._backlogs.remove_unicast((push.send.appkey, partition), push.msgid, done)
        if part.is_concluded:
            self._forget_part(push, partition)

    # --- transitions of a push in a partition

    def _add_active(self, push: StartedPush, partition: int, part: AudiencePart) -> None:
        push.active_parts[partition] = part
        self._backlogs.add((push.send.appkey, partition), push.msgid, part)

    def _end(self, push: StartedPush, partition: int, forget_ms: int) -> None:
        """Stop sending in the partition; late acknowledgements count until `forget_ms`."""
        part = self._remove_active(push, partition)
        if part is not None and forget_ms > self.log_ms:
            self._add_ended(push, partition, EndedPart(part, forget_ms))
        else:
            self.hand_overs.forget(push.msgid, partition)
        self._forget_unneeded(push)

    def _add_ended(self, push: StartedPush, partition: int, ended: EndedPart) -> None:
        push.ended_parts[partition] = ended
        heapq.heappush(self._forget_times, (ended.forget_ms, push.msgid, partition))

    def _remove_active(self, push: StartedPush, partition: int) -> AudiencePart | None:
        part = push.active_parts.pop(partition, None)
        if part is not None:
            self._backlogs.remove((push.send.appkey, partition), push.msgid, part)
        return part

    def _forget_ended(self) -> None:
        while self._forget_times and self._forget_times[0][0] <= self.log_ms:
            _, msgid, partition = heapq.heappop(self._forget_times)
            if (push := self.started.get(msgid)) is not None and partition in push.ended_parts:
                self._forget_part(push, partition)

    def _forget_part(self, push: StartedPush, partition: int) -> None:
        self._remove_active(push, partition)
        push.ended_parts.pop(partition, None)
        self.hand_overs.forget(push.msgid, partition)
        self._forget_unneeded(push)

    def _forget_unneeded(self, push: StartedPush) -> None:
        """Drop the message of a push once no device is sent it any more, and the push once no part of it is left."""
        if self.is_in_progress(push.msgid):
            return
        self.pending_cancels.pop(push.msgid, None)
        if push.ended_parts:
            push.send.ClearField("message")
            return
        del self.started[push.msgid]

    def restore(self, push: StartedPush) -> None:
        """Add a push from a snapshot, after all requested pushes."""
        self.started[push.msgid] = push
        for partition, part in push.active_parts.items():
            self._add_active(push, partition, part)
        for partition, ended in push.ended_parts.items():
            self._add_ended(push, partition, ended)
        if push.msgid not in self.requested:
            self._expiries.add(push.expires_ms, push.msgid)

    def restore_packed(self, pushes: PackedPushes) -> None:
        """Add pushes from a snapshot, after all requested pushes; none of these is among them."""
        self.started.add_packed(pushes)
        self._backlogs.add_packed(pushes)
        for expires_ms, msgid in zip(pushes.expiries_ms, pushes.msgids, strict=True):
            self._expiries.add(expires_ms, msgid)

    # --- queries

    def push_of(self, msgid: int) -> StartedPush | None:
        """Return the push with this message id, which may be any id of a token list, until it is forgotten."""
        return self.started.holding(msgid)

    def is_in_progress(self, msgid: int) -> bool:
        """Whether a device may still be sent the push."""
        push = self.started.get(msgid)
        return msgid in self.requested or (push is not None and bool(push.active_parts))

    def may_send(self, push: StartedPush, now_ms: int) -> bool:
        """Whether devices may be sent the push: it has neither expired nor ended, and no cancel is pending."""
        return push.expires_ms > now_ms and push.msgid not in self.pending_cancels and bool(push.active_parts)

    def pop_expired(self, now_ms: int) -> list[StartedPush]:
        """Return the pushes whose time to live has passed, in order of expiry; each is returned once."""
        return [self.started[msgid] for msgid in self._expiries.pop_expired(now_ms)]

    def pending(self, device: DeviceAddress) -> list[tuple[int, StartedPush]]:
        """Return (message id, push) of the messages without a final outcome on the device, in the order of the log."""
        pushes = [self.started[msgid] for msgid in self._backlogs.pushes(device) if msgid not in self.pending_cancels]
        found = [
            (msgid, push)
            for push in pushes
            for msgid in push.active_parts[device.partition].pending_msgids(device.number)
        ]
        return sorted(found, key=lambda item: (item[1].offset, item[0]))

    def broadcasts_in_progress(self, app_partition: AppPartition) -> Iterable[int]:
        """Return the msgids of the app's broadcasts and multicasts that have started in the partition and not ended."""
        return self._backlogs.broadcasts(app_partition)

    def mailbox(self, device: DeviceAddress) -> Sequence[int]:
        """Return the msgids of the unicast pushes that are pending for the device, oldest first."""
        return self._backlogs.mailbox(device)

    def is_requested_by_alias(self, device: DeviceAddress) -> bool:
        """Whether a push that names the device by an alias has not started."""
        return device in self._requested_by_alias

    def waiting_by_alias(self, device: DeviceAddress) -> dict[int, str]:
        """Return the alias of each message that has started, is pending for the device and was sent to an alias."""
        found: dict[int, str] = {}
        for first in self.mailbox(device):
            push = self.started[first]
            alias = alias_of_target(push.send, device.partition, device.number)
            if alias is not None:
                found |= dict.fromkeys(push.active_parts[device.partition].pending_msgids(device.number), alias)
        return found


def _devices_by_alias(push: UnstartedPush, partition: int) -> Sequence[DeviceAddress]:
    """Return the devices in the partition that the push names by an alias, before it starts there."""
    if not push.send.audience.devices.aliases:
        return ()
    return [DeviceAddress(push.send.appkey, partition, number) for number in push.targets(partition)]
