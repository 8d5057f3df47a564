"""What delivery knows: every push that may still reach a device, and who has it already.

The state is folded from `push-commands` (what was asked for), `pushes` (who is in the audience) and `deliveries` (what
became of it). A command is folded before the facts it caused, and a partition's audience before its outcomes. What was
asked for and not decided yet is part of the state, so a process that starts again goes on where the last one ended.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, PushFact, PushStarted
from protos.push.v1.push_pb2 import CancelPush, PushCommand, SendPush
from services.delivery.state.audience_parts import BitmapPart, ListedPart, Part, listed_targets
from services.delivery.state.badges import Badges
from services.delivery.state.broadcasts import Broadcasts
from services.delivery.state.dedupe_window import DedupeWindow
from services.delivery.state.mailboxes import Mailboxes
from services.delivery.state.pushes import Over, Push, Waiting
from services.runtime.log.port import Record

SETTLING = frozenset(
    {
        OutcomeKind.OUTCOME_KIND_RECEIVED,
        OutcomeKind.OUTCOME_KIND_FAILED,
        OutcomeKind.OUTCOME_KIND_EXPIRED,
        OutcomeKind.OUTCOME_KIND_CANCELLED,
        OutcomeKind.OUTCOME_KIND_DROPPED,
    }
)
"""After one of these a device is done with a message. iOS devices acknowledge nothing: there, sent is the end."""

_SETTLES = numpy.isin(numpy.arange(256), list(SETTLING))
_SETTLES_IOS = numpy.isin(numpy.arange(256), [*SETTLING, OutcomeKind.OUTCOME_KIND_SENT])


LATE_MS = 86_400_000
"""How long after a cancel or the end of its time a push is known, for devices that say only then that they have it."""


class DeliveryState:
    """The fold. Keyed by message id and by device; an app's device is (appkey, partition, number)."""

    def __init__(self, owned: Iterable[int]) -> None:
        self.owned = frozenset(owned)
        self.seen = DedupeWindow()
        self.broadcasts = Broadcasts()
        self.badges = Badges()
        self.waiting: dict[int, Waiting] = {}
        self.pushes: dict[int, Push] = {}
        self.cancels: dict[int, int] = {}
        """Offset of the cancel, by the msgid of a push that it has not ended yet."""
        self._by_id: dict[int, Push] = {}
        self._ios_apps: set[str] = set()
        self._broadcasts: dict[tuple[str, int], dict[int, Push]] = {}
        self._mailboxes = Mailboxes()
        self._expiries: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int, int]] = []
        self.log_ms = 0
        """The latest moment of a command: time passes with the log, not with the clock."""

    # --- fold

    def apply(self, record: Record, message: Any) -> None:
        """Fold one record of push-commands, pushes or deliveries. ValueError: it cannot be understood."""
        match message:
            case PushCommand():
                self._command(record.offset, message)
            case PushFact():
                self._push_fact(message)
            case DeliveryFact():
                for outcomes in message.outcomes.apps:
                    self._outcomes(record.partition, outcomes)
            case _:
                raise ValueError(f"{record.topic} holds nothing that delivery folds")

    def _command(self, offset: int, command: PushCommand) -> None:
        self.log_ms = max(self.log_ms, command.meta.time_ms)
        self.broadcasts.forget(self.log_ms)
        self._forget()
        kind = command.WhichOneof("command")
        match kind:
            case "send":
                self._ask(offset, command.send, command.meta.time_ms)
            case "cancel":
                self._ask_to_cancel(offset, command.cancel)
            case None:
                pass
            case _:
                assert_never(kind)

    def _ask(self, offset: int, send: SendPush, accepted_ms: int) -> None:
        msgid = send.msgid
        if msgid in self.waiting or msgid in self.pushes or msgid in self.seen:
            return
        waiting = self._waiting(offset, send, accepted_ms)
        if not send.audience.HasField("devices"):
            self.broadcasts.add(msgid, send.appkey, waiting.expires_ms)
        if waiting.missing:
            send.ClearField("request_json")
            self.waiting[msgid] = waiting
        else:
            self.seen.add(msgid)

    def _waiting(self, offset: int, send: SendPush, accepted_ms: int) -> Waiting:
        """A push starts everywhere for a filter, where its devices are for a list."""
        match send.audience.WhichOneof("audience"):
            case "everyone" | "filter":
                return Waiting(send, offset, accepted_ms, set(self.owned))
            case "devices":
                targets = listed_targets(send)
                return Waiting(send, offset, accepted_ms, set(self.owned.intersection(targets)), targets)
            case "tokens" | "aliases" | None:
                raise ValueError(f"push {send.msgid} has no audience that can be resolved")
            case never:
                assert_never(never)

    def _ask_to_cancel(self, offset: int, cancel: CancelPush) -> None:
        self.broadcasts.cancel(cancel.msgid, cancel.appkey)
        asked = self.waiting.get(cancel.msgid) or self.pushes.get(cancel.msgid)
        if asked is not None and asked.send.appkey == cancel.appkey and self.is_under_way(cancel.msgid):
            self.cancels.setdefault(cancel.msgid, offset)

    def _push_fact(self, fact: PushFact) -> None:
        kind = fact.WhichOneof("fact")
        match kind:
            case "started":
                self._start(fact.msgid, fact.partition, fact.started)
            case "cancelled" | "finished":
                if (push := self.pushes.get(fact.msgid)) is not None and fact.partition in push.parts:
                    self._cut_off(push, fact.partition, fact.meta.time_ms + LATE_MS)
            case None:
                pass
            case _:
                assert_never(kind)

    def _start(self, msgid: int, partition: int, started: PushStarted) -> None:
        waiting = self.waiting.get(msgid)
        if waiting is None or partition not in waiting.missing:
            return
        waiting.missing.discard(partition)
        push = self.pushes.get(msgid)
        if push is None:
            push = Push(waiting.send, waiting.order, started.expires_ms)
            self._know(push)
        part: Part
        if push.is_listed:
            part = ListedPart(waiting.targets(partition))
        else:
            part = BitmapPart(msgid, BitMap.deserialize(started.audience), BitMap())
        self._put(push, partition, part)
        if not waiting.missing:
            del self.waiting[msgid]
            self.seen.add(msgid)
            heapq.heappush(self._expiries, (push.expires_ms, msgid))
        if part.done:
            self._end(push, partition)
        else:
            self._tidy(push)

    def _know(self, push: Push) -> None:
        self.pushes[push.msgid] = push
        self._by_id.update(dict.fromkeys(push.ids, push))
        if push.is_ios:
            self._ios_apps.add(push.send.appkey)

    def _put(self, push: Push, partition: int, part: Part) -> None:
        place = (push.send.appkey, partition)
        push.parts[partition] = part
        if isinstance(part, ListedPart):
            self._mailboxes.put(place, part.targets, push.msgid)
        else:
            self._broadcasts.setdefault(place, {})[push.msgid] = push

    def _outcomes(self, partition: int, outcomes: AppOutcomes) -> None:
        msgids = numpy.frombuffer(outcomes.msgids, "<u8")
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")
        kinds = numpy.frombuffer(outcomes.kinds, "u1")
        badges = len(outcomes.badges) // 4 or len(kinds)
        if not len(msgids) == len(numbers) == len(kinds) == len(outcomes.times_ms) // 8 == badges:
            raise ValueError("outcomes have columns of different lengths")
        self.badges.fold(partition, outcomes)
        chosen = (_SETTLES_IOS if outcomes.appkey in self._ios_apps else _SETTLES)[kinds]
        for msgid, done in _grouped(msgids[chosen], numbers[chosen]).items():
            push = self._by_id.get(msgid)
            if push is not None and push.send.appkey == outcomes.appkey:
                self._settle(push, partition, msgid, done)

    def _settle(self, push: Push, partition: int, msgid: int, numbers: Sequence[int]) -> None:
        part = push.part(partition)
        if part is None:
            return
        part.settle(msgid, numbers)
        if isinstance(part, ListedPart) and partition in push.parts:
            done = [number for number in numbers if number not in part.targets]
            self._mailboxes.take_out((push.send.appkey, partition), done, push.msgid)
        if part.done:
            self._end(push, partition)

    def _end(self, push: Push, partition: int) -> None:
        """Everybody there is done with it, or what they might still say of it came too late."""
        self._withdraw(push, partition)
        push.over.pop(partition, None)
        self._tidy(push)

    def _cut_off(self, push: Push, partition: int, forget_ms: int) -> None:
        """Nobody is sent it any more; who has it may say so for a while."""
        part = self._withdraw(push, partition)
        if part is not None and forget_ms > self.log_ms:
            self._keep(push, partition, Over(part, forget_ms))
        self._tidy(push)

    def _keep(self, push: Push, partition: int, over: Over) -> None:
        push.over[partition] = over
        heapq.heappush(self._ends, (over.forget_ms, push.msgid, partition))

    def _tidy(self, push: Push) -> None:
        """Let go what is not needed of a push that is sent to nobody any more."""
        if self.is_under_way(push.msgid):
            return
        self.cancels.pop(push.msgid, None)
        if push.over:
            push.send.ClearField("message")
            return
        del self.pushes[push.msgid]
        for msgid in push.ids:
            self._by_id.pop(msgid, None)

    def _withdraw(self, push: Push, partition: int) -> Part | None:
        part = push.parts.pop(partition, None)
        place = (push.send.appkey, partition)
        if isinstance(part, ListedPart):
            self._mailboxes.take_out(place, part.targets, push.msgid)
        elif part is not None:
            del self._broadcasts[place][push.msgid]
        return part

    def _forget(self) -> None:
        while self._ends and self._ends[0][0] <= self.log_ms:
            _, msgid, partition = heapq.heappop(self._ends)
            if (push := self.pushes.get(msgid)) is not None and partition in push.over:
                self._end(push, partition)

    def restore(self, push: Push) -> None:
        """Take over a push from a snapshot; whatever waits must be there already."""
        self._know(push)
        for partition, part in push.parts.items():
            self._put(push, partition, part)
        for partition, over in push.over.items():
            self._keep(push, partition, over)
        if push.msgid not in self.waiting:
            heapq.heappush(self._expiries, (push.expires_ms, push.msgid))

    # --- questions

    def push_of(self, msgid: int) -> Push | None:
        """The push that a message id, the first or one of a list, belongs to, while it may still reach a device."""
        return self._by_id.get(msgid)

    def is_under_way(self, msgid: int) -> bool:
        """Whether somebody may still be sent the push."""
        push = self.pushes.get(msgid)
        return msgid in self.waiting or (push is not None and bool(push.parts))

    def expired(self, now_ms: int) -> list[Push]:
        """Pushes whose time to live is over; each is told once, in order of expiry."""
        over = []
        while self._expiries and self._expiries[0][0] <= now_ms:
            over.append(heapq.heappop(self._expiries)[1])
        return [self.pushes[msgid] for msgid in over if msgid in self.pushes]

    def pending(self, appkey: str, partition: int, number: int) -> list[tuple[int, Push]]:
        """(message id, push) of everything the device has still to get, in the order of the log."""
        place = (appkey, partition)
        pushes = [self.pushes[msgid] for msgid in self._mailboxes.of(place, number)]
        pushes += self._broadcasts.get(place, {}).values()
        found = [
            (msgid, push)
            for push in pushes
            if push.msgid not in self.cancels
            for msgid in push.parts[partition].pending_ids(number)
        ]
        return sorted(found, key=lambda item: (item[1].order, item[0]))

    def mailbox(self, appkey: str, partition: int, number: int) -> Sequence[int]:
        """The unicast pushes that wait for the device, oldest first."""
        return self._mailboxes.of((appkey, partition), number)


def _grouped(msgids: NDArray[numpy.uint64], numbers: NDArray[numpy.uint32]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for msgid, number in zip(msgids.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(msgid, []).append(number)
    return groups
