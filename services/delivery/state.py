"""What delivery knows: every push that may still reach a device, and who has it already.

The state is folded from `push-commands` (what to send), `pushes` (who is in the audience) and `deliveries` (what
became of it). Commands are folded before the facts they caused, so that a fact always finds its message.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec
import numpy
from pyroaring import BitMap, BitMap64

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, PushFact, PushStarted
from protos.push.v1.push_pb2 import Devices, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.delivery.parts import BitmapPart, ListedPart, Part
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

_RECENT = 500_000
_DUMPED = tuple[bytes, int, int, list[tuple[int, bytes]]]


@dataclass(slots=True)
class Push:
    """One push with at least one started partition; `order` is its offset in push-commands."""

    send: SendPush
    order: int
    expires_ms: int
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def msgid(self) -> int:
        return self.send.msgid

    def settles(self, kind: int) -> bool:
        return kind in SETTLING or (kind == OutcomeKind.OUTCOME_KIND_SENT and self.send.platform == PLATFORM_IOS)


@dataclass(slots=True)
class Waiting:
    """A command that was read; it leaves once all its partitions have started."""

    send: SendPush
    order: int
    accepted_ms: int
    started: set[int] = field(default_factory=set)


class DeliveryState:
    """The fold. Keyed by message id and by device; an app's device is (appkey, partition, number)."""

    def __init__(self, owned: Iterable[int]) -> None:
        self._owned = frozenset(owned)
        self.pushes: dict[int, Push] = {}
        self.waiting: dict[int, Waiting] = {}
        self._by_id: dict[int, Push] = {}
        self._broadcasts: dict[tuple[str, int], dict[int, Push]] = {}
        self._mailboxes: dict[tuple[str, int], dict[int, list[int]]] = {}
        self._expiries: list[tuple[int, int]] = []
        self._recent = BitMap64()
        self._older = BitMap64()

    # --- fold

    def apply(self, record: Record, message: Any) -> None:
        """Fold one record of push-commands, pushes or deliveries."""
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
        kind = command.WhichOneof("command")
        match kind:
            case "send":
                if not self.knows(command.send.msgid):
                    self.waiting[command.send.msgid] = Waiting(command.send, offset, command.meta.time_ms)
                    self._finish_if_started(command.send.msgid)
            case "cancel" | None:
                pass
            case _:
                assert_never(kind)

    def _push_fact(self, fact: PushFact) -> None:
        kind = fact.WhichOneof("fact")
        match kind:
            case "started":
                self._start(fact.msgid, fact.partition, fact.started)
            case "cancelled" | "finished":
                self._end(fact.msgid, fact.partition)
            case None:
                pass
            case _:
                assert_never(kind)

    def _start(self, msgid: int, partition: int, started: PushStarted) -> None:
        waiting = self.waiting.get(msgid)
        if waiting is None or partition in waiting.started:
            return
        waiting.started.add(partition)
        push = self.pushes.get(msgid) or self._add(Push(waiting.send, waiting.order, started.expires_ms))
        place = (push.send.appkey, partition)
        if push.send.audience.WhichOneof("audience") == "devices":
            targets = listed_targets(push.send, partition)
            push.parts[partition] = ListedPart(targets)
            boxes = self._mailboxes.setdefault(place, {})
            for number, ids in targets.items():
                boxes.setdefault(number, []).append(msgid)
                self._by_id.update(dict.fromkeys(ids, push))
        else:
            push.parts[partition] = BitmapPart(msgid, BitMap.deserialize(started.audience), BitMap())
            self._by_id[msgid] = push
            self._broadcasts.setdefault(place, {})[msgid] = push
        self._finish_if_started(msgid)
        self._end_if_done(push, partition)

    def _add(self, push: Push) -> Push:
        self.pushes[push.msgid] = push
        heapq.heappush(self._expiries, (push.expires_ms, push.msgid))
        return push

    def _finish_if_started(self, msgid: int) -> None:
        """A command whose owned partitions have all started is remembered only, so that a repeated record is known."""
        waiting = self.waiting[msgid]
        if waiting.started >= started_in(waiting.send, self._owned):
            del self.waiting[msgid]
            self._remember(msgid)

    def _remember(self, msgid: int) -> None:
        self._recent.add(msgid)
        if len(self._recent) >= _RECENT:
            self._older, self._recent = self._recent, BitMap64()

    def _outcomes(self, partition: int, outcomes: AppOutcomes) -> None:
        msgids = numpy.frombuffer(outcomes.msgids, "<u8")
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")
        kinds = numpy.frombuffer(outcomes.kinds, "u1")
        for msgid in numpy.unique(msgids):
            push = self._by_id.get(int(msgid))
            part = push.parts.get(partition) if push else None
            if push is None or part is None:
                continue
            chosen = msgids == msgid
            settling = numpy.isin(kinds, [kind for kind in OutcomeKind.values() if push.settles(kind)])
            part.settle(int(msgid), numbers[chosen & settling])
            for number in numbers[chosen & settling].tolist() if isinstance(part, ListedPart) else ():
                self._unbox(push, partition, number)
            self._end_if_done(push, partition)

    def _unbox(self, push: Push, partition: int, number: int) -> None:
        boxes = self._mailboxes.get((push.send.appkey, partition), {})
        if number in boxes and not push.parts[partition].pending_ids(number):
            if push.msgid in boxes[number]:
                boxes[number].remove(push.msgid)
            if not boxes[number]:
                del boxes[number]

    def _end_if_done(self, push: Push, partition: int) -> None:
        if push.parts[partition].done:
            self._end(push.msgid, partition)

    def _end(self, msgid: int, partition: int) -> None:
        push = self.pushes.get(msgid)
        part = push.parts.get(partition) if push else None
        if push is None or part is None:
            return
        place = (push.send.appkey, partition)
        if isinstance(part, ListedPart):
            for number in list(part.targets):
                part.targets[number] = []
                self._unbox(push, partition, number)
        else:
            self._broadcasts.get(place, {}).pop(msgid, None)
        del push.parts[partition]
        if not push.parts:
            del self.pushes[msgid]
            for entry in range(msgid, msgid + push.send.id_count):
                self._by_id.pop(entry, None)

    # --- questions

    def resume_at(self, next_offset: int) -> int:
        """Where to read push-commands again so that nothing half started is left out."""
        return min([next_offset, *(waiting.order for waiting in self.waiting.values())])

    def knows(self, msgid: int) -> bool:
        """Whether the command was read before."""
        return msgid in self.waiting or msgid in self.pushes or msgid in self._recent or msgid in self._older

    def push_of(self, msgid: int) -> Push | None:
        """The push that a message id, the first or one of a list, belongs to, while it may still reach a device."""
        return self._by_id.get(msgid)

    def expired(self, now_ms: int) -> list[int]:
        """Message ids of pushes whose time to live is over; each is told once, in order of expiry."""
        over = []
        while self._expiries and self._expiries[0][0] <= now_ms:
            over.append(heapq.heappop(self._expiries)[1])
        return [msgid for msgid in over if msgid in self.pushes]

    def pending(self, appkey: str, partition: int, number: int) -> list[tuple[int, Push]]:
        """(message id, push) of everything the device has still to get, in the order of the log."""
        place = (appkey, partition)
        pushes = [self.pushes[msgid] for msgid in self._mailboxes.get(place, {}).get(number, ())]
        pushes += self._broadcasts.get(place, {}).values()
        found = [(entry, push) for push in pushes for entry in push.parts[partition].pending_ids(number)]
        return sorted(found, key=lambda item: (item[1].order, item[0]))

    def mailbox(self, appkey: str, partition: int, number: int) -> Sequence[int]:
        """The unicast pushes that wait for the device, oldest first."""
        return self._mailboxes.get((appkey, partition), {}).get(number, ())

    # --- snapshot

    def dump(self) -> Iterator[tuple[bytes, bytes]]:
        """The state as blobs."""
        yield b"recent", msgspec.msgpack.encode((self._recent.serialize(), self._older.serialize()))
        for waiting in self.waiting.values():
            raw = waiting.send.SerializeToString()
            yield b"waiting", msgspec.msgpack.encode((raw, waiting.order, waiting.accepted_ms, sorted(waiting.started)))
        for msgid in sorted(self.pushes):
            push = self.pushes[msgid]
            parts = [(number, part.dump()) for number, part in sorted(push.parts.items())]
            yield b"push", msgspec.msgpack.encode((push.send.SerializeToString(), push.order, push.expires_ms, parts))

    def load(self, blobs: Sequence[tuple[bytes, bytes]]) -> None:
        """Take over what `dump` gave."""
        for key, value in blobs:
            if key == b"recent":
                recent, older = msgspec.msgpack.decode(value, type=tuple[bytes, bytes])
                self._recent, self._older = BitMap64.deserialize(recent), BitMap64.deserialize(older)
            elif key == b"waiting":
                raw, order, accepted_ms, started = msgspec.msgpack.decode(value, type=tuple[bytes, int, int, set[int]])
                waiting = Waiting(SendPush.FromString(raw), order, accepted_ms, started)
                self.waiting[waiting.send.msgid] = waiting
            else:
                self._load_push(value)

    def _load_push(self, value: bytes) -> None:
        raw, order, expires_ms, parts = msgspec.msgpack.decode(value, type=_DUMPED)
        push = Push(SendPush.FromString(raw), order, expires_ms)
        listed = push.send.audience.WhichOneof("audience") == "devices"
        self._add(push)
        for partition, blob in parts:
            place = (push.send.appkey, partition)
            if listed:
                part = ListedPart.load(blob)
                push.parts[partition] = part
                for number, ids in part.targets.items():
                    self._mailboxes.setdefault(place, {}).setdefault(number, []).append(push.msgid)
                    self._by_id.update(dict.fromkeys(ids, push))
            else:
                push.parts[partition] = BitmapPart.load(push.msgid, blob)
                self._by_id[push.msgid] = push
                self._broadcasts.setdefault(place, {})[push.msgid] = push

    def digest(self) -> str:
        """A hash over every push that may still reach a device."""
        digest = hashlib.sha256()
        for key, value in self.dump():
            if key == b"push":
                digest.update(value)
        return digest.hexdigest()


def started_in(send: SendPush, owned: frozenset[int]) -> frozenset[int]:
    """The partitions in which a push starts: all for a resolved filter, those of its devices for a list."""
    match send.audience.WhichOneof("audience"):
        case "everyone" | "filter":
            return owned
        case "devices":
            return owned.intersection(numpy.frombuffer(send.audience.devices.partitions, "<u2").tolist())
        case _:
            return frozenset()


def listed_targets(send: SendPush, partition: int) -> dict[int, list[int]]:
    """Device number -> message ids, for the targets of one partition."""
    devices: Devices = send.audience.devices
    partitions = numpy.frombuffer(devices.partitions, "<u2")
    here = partitions == partition
    numbers = numpy.frombuffer(devices.numbers, "<u4")[here].tolist()
    offsets = numpy.frombuffer(devices.id_offsets, "<u4")[here].tolist()
    targets: dict[int, list[int]] = {}
    for number, offset in zip(numbers, offsets, strict=True):
        targets.setdefault(number, []).append(send.msgid + offset)
    return targets
