"""What delivery knows: every push that may still reach a device, and who has it already.

The state is folded from `push-commands` (what was asked for), `pushes` (who is in the audience) and `deliveries` (what
became of it). A command is folded before the facts it caused, and a partition's audience before its outcomes. What was
asked for and not decided yet is part of the state, so a process that starts again goes on where the last one ended.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, PushFact, PushStarted
from protos.push.v1.push_pb2 import CancelPush, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.delivery.broadcasts import Broadcasts
from services.delivery.parts import BitmapPart, ListedPart, Part, Targets, listed_targets
from services.delivery.seen import Seen
from services.runtime.log import Record

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


@dataclass(slots=True)
class Push:
    """One push that started in at least one partition; `order` is its offset in push-commands."""

    send: SendPush
    order: int
    expires_ms: int
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def msgid(self) -> int:
        return self.send.msgid

    @property
    def is_ios(self) -> bool:
        return self.send.platform == PLATFORM_IOS

    @property
    def is_listed(self) -> bool:
        return self.send.audience.HasField("devices")

    @property
    def ids(self) -> range:
        return range(self.msgid, self.msgid + max(1, self.send.id_count))


@dataclass(slots=True)
class Waiting:
    """A push that was asked for and has not started in the `missing` partitions."""

    send: SendPush
    order: int
    accepted_ms: int
    missing: set[int]
    _targets: dict[int, Targets] | None = None

    @property
    def expires_ms(self) -> int:
        return self.accepted_ms + self.send.period_s * 1000

    def targets(self, partition: int) -> Targets:
        """The listed devices there; what they hold is the caller's."""
        if self._targets is None:
            self._targets = listed_targets(self.send)
        return self._targets[partition]


class DeliveryState:
    """The fold. Keyed by message id and by device; an app's device is (appkey, partition, number)."""

    def __init__(self, owned: Iterable[int]) -> None:
        self.owned = frozenset(owned)
        self.seen = Seen()
        self.broadcasts = Broadcasts()
        self.waiting: dict[int, Waiting] = {}
        self.pushes: dict[int, Push] = {}
        self.cancels: dict[int, int] = {}
        """Offset of the cancel, by the msgid of a push that it has not ended yet."""
        self._by_id: dict[int, Push] = {}
        self._ios_apps: set[str] = set()
        self._broadcasts: dict[tuple[str, int], dict[int, Push]] = {}
        self._mailboxes: dict[tuple[str, int], dict[int, list[int]]] = {}
        self._expiries: list[tuple[int, int]] = []

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
        self.broadcasts.forget(command.meta.time_ms)
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
        if asked is not None and asked.send.appkey == cancel.appkey:
            self.cancels.setdefault(cancel.msgid, offset)

    def _push_fact(self, fact: PushFact) -> None:
        kind = fact.WhichOneof("fact")
        match kind:
            case "started":
                self._start(fact.msgid, fact.partition, fact.started)
            case "cancelled" | "finished":
                if (push := self.pushes.get(fact.msgid)) is not None:
                    self._end(push, fact.partition)
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
            push = self.pushes[msgid] = Push(waiting.send, waiting.order, started.expires_ms)
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

    def _put(self, push: Push, partition: int, part: Part) -> None:
        place = (push.send.appkey, partition)
        push.parts[partition] = part
        if push.is_ios:
            self._ios_apps.add(push.send.appkey)
        if isinstance(part, ListedPart):
            boxes = self._mailboxes.setdefault(place, {})
            for number, ids in part.targets.items():
                boxes.setdefault(number, []).append(push.msgid)
                for msgid in ids:
                    self._by_id[msgid] = push
        else:
            self._by_id[push.msgid] = push
            self._broadcasts.setdefault(place, {})[push.msgid] = push

    def _outcomes(self, partition: int, outcomes: AppOutcomes) -> None:
        msgids = numpy.frombuffer(outcomes.msgids, "<u8")
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")
        kinds = numpy.frombuffer(outcomes.kinds, "u1")
        chosen = (_SETTLES_IOS if outcomes.appkey in self._ios_apps else _SETTLES)[kinds]
        for msgid, done in _grouped(msgids[chosen], numbers[chosen]).items():
            push = self._by_id.get(msgid)
            if push is not None and push.send.appkey == outcomes.appkey:
                self._settle(push, partition, msgid, done)

    def _settle(self, push: Push, partition: int, msgid: int, numbers: Sequence[int]) -> None:
        part = push.parts.get(partition)
        if part is None:
            return
        part.settle(msgid, numbers)
        if isinstance(part, ListedPart):
            for number in numbers:
                if number not in part.targets:
                    self._unbox(push, partition, number)
        if part.done:
            self._end(push, partition)

    def _unbox(self, push: Push, partition: int, number: int) -> None:
        boxes = self._mailboxes[push.send.appkey, partition]
        box = boxes.get(number, [])
        if push.msgid in box:
            box.remove(push.msgid)
            if not box:
                del boxes[number]

    def _end(self, push: Push, partition: int) -> None:
        part = push.parts.pop(partition, None)
        if isinstance(part, ListedPart):
            for number in part.targets:
                self._unbox(push, partition, number)
        elif part is not None:
            del self._broadcasts[push.send.appkey, partition][push.msgid]
        if not push.parts and push.msgid not in self.waiting:
            del self.pushes[push.msgid]
            self.cancels.pop(push.msgid, None)
            for msgid in push.ids:
                self._by_id.pop(msgid, None)

    def restore(self, push: Push) -> None:
        """Take over a push from a snapshot; whatever waits must be there already."""
        self.pushes[push.msgid] = push
        for partition, part in push.parts.items():
            self._put(push, partition, part)
        if push.msgid not in self.waiting:
            heapq.heappush(self._expiries, (push.expires_ms, push.msgid))

    # --- questions

    def push_of(self, msgid: int) -> Push | None:
        """The push that a message id, the first or one of a list, belongs to, while it may still reach a device."""
        return self._by_id.get(msgid)

    def expired(self, now_ms: int) -> list[Push]:
        """Pushes whose time to live is over; each is told once, in order of expiry."""
        over = []
        while self._expiries and self._expiries[0][0] <= now_ms:
            over.append(heapq.heappop(self._expiries)[1])
        return [self.pushes[msgid] for msgid in over if msgid in self.pushes]

    def pending(self, appkey: str, partition: int, number: int) -> list[tuple[int, Push]]:
        """(message id, push) of everything the device has still to get, in the order of the log."""
        place = (appkey, partition)
        pushes = [self.pushes[msgid] for msgid in self._mailboxes.get(place, {}).get(number, ())]
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
        return self._mailboxes.get((appkey, partition), {}).get(number, ())


def _grouped(msgids: NDArray[numpy.uint64], numbers: NDArray[numpy.uint32]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for msgid, number in zip(msgids.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(msgid, []).append(number)
    return groups
