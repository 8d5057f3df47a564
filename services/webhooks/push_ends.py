"""Which pushes have ended, with totals, for the apps whose webhooks want to know: facts in topic `push-ends`.

Delivery writes no record when the last message of a push has its outcome: it would be one more for each push. So the
outcomes are counted here, for the apps that want it alone. A push counts if its command is read while a webhook of its
app wants to know. In each partition it is over by a fact of delivery, or once each message has a final outcome; the
push is over with its last partition.

The counts are in memory, with a snapshot from time to time. After a kill the records behind the snapshot are counted
again, and pushes whose end is in the log already are passed over.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, assert_never

import msgspec
import numpy
from numpy.typing import NDArray
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, PushFact
from protos.push.v1.push_pb2 import Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, EventKind
from protos.runtime.v1.log_pb2 import Meta
from protos.webhooks.v1.push_ends_pb2 import PushEnded, PushEndFact, PushEnding
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSH_ENDS, PUSHES, decode
from services.errors import CarillonError, UnavailableError
from services.log.port import (
    LOG_UNAVAILABLE,
    Log,
    NewRecord,
    Partition,
    Record,
    append_until_accepted,
    ends_of,
)
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.catch_up import read_until
from services.replica.dead_letters import UNUSABLE, leave_out
from services.replica.merge import CausalOrder
from services.replica.snapshot import SnapshotFile
from services.webhooks.log_readers import EpochsFromOffset, gather_records
from services.webhooks.settings import ROLE_NAME
from services.webhooks.subscriptions import Subscriptions

SNAPSHOT_VERSION = 2
SAVED_EVERY_MS = 60_000
MAX_HELD_BYTES = 8 * 1024 * 1024
"""Upper bound of the records that wait for their cause, beyond which they are counted without it."""

_READ_AT_ONCE = 500
_RECORD_BYTES = 400
_COUNTED_AT_ONCE_BYTES = 32 * 1024
"""Bytes of records, each with some more for its own work, after which other tasks run: about 1 ms."""

Numbers: TypeAlias = NDArray[Any]
_RETRY_MS = 10_000
_ENDS = Partition(PUSH_ENDS.name, 0)

_KIND = OutcomeKind
_REPORTS = (_KIND.OUTCOME_KIND_SHOWN, _KIND.OUTCOME_KIND_CLICKED, _KIND.OUTCOME_KIND_DISMISSED)
_RECEIVED = (_KIND.OUTCOME_KIND_RECEIVED, *_REPORTS)
_TAKEN_OVER = (_KIND.OUTCOME_KIND_HANDED_OVER, *_RECEIVED)
_SENT = (_KIND.OUTCOME_KIND_SENT, *_TAKEN_OVER)
_NOT_REACHED = (
    _KIND.OUTCOME_KIND_FAILED,
    _KIND.OUTCOME_KIND_DROPPED,
    _KIND.OUTCOME_KIND_CANCELLED,
    _KIND.OUTCOME_KIND_EXPIRED,
)
"""The outcomes of a message that was not done, the first of which counts."""

_NAMES = dict(zip(_NOT_REACHED, ("failed", "dropped", "cancelled", "expired"), strict=True))
_OF_THE_REST = {PushEnding.PUSH_ENDING_EXPIRED: "expired", PushEnding.PUSH_ENDING_CANCELLED: "cancelled"}
"""The outcome of messages that have none when a fact of delivery ends the push in their partition."""

_COUNTED = frozenset({*_SENT, *_NOT_REACHED})
_FINAL = frozenset({_KIND.OUTCOME_KIND_RECEIVED, _KIND.OUTCOME_KIND_HANDED_OVER, *_NOT_REACHED})
_FINAL_OF_IOS = _FINAL | {_KIND.OUTCOME_KIND_SENT}


@dataclass(slots=True)
class PushPart:
    """A push in one partition: its audience, the part of it without a final outcome, and the part with each outcome.

    The bitmaps contain device numbers. For a token list with several message ids they contain the places of these ids
    instead, since a token may be there twice. `audience`: None before a filter has started. `ending`: 0 while the push
    goes on in the partition.
    """

    audience: BitMap | None
    pending: BitMap
    outcomes: dict[int, BitMap] = field(default_factory=dict)
    ending: PushEnding.ValueType = PushEnding.PUSH_ENDING_UNSPECIFIED

    @classmethod
    def of(cls, audience: BitMap) -> "PushPart":
        return cls(audience, audience.copy())

    def count(self, kind: int, members: BitMap, *, is_final: bool) -> None:
        """Count an outcome of members of the audience; others, and one that is repeated, do not count."""
        if self.audience is None:
            return
        members &= self.audience
        self.outcomes.setdefault(kind, BitMap()).update(members)
        if is_final:
            self.pending -= members
            self.end_if_done()

    def end_if_done(self) -> None:
        if self.audience is not None and not self.pending:
            self.ending = self.ending or PushEnding.PUSH_ENDING_COMPLETED

    def totals(self, *, is_ios: bool) -> Counter[str]:
        """Return the numbers of messages as the statistics define them: a later step implies the earlier ones.

        Each message is at most one of done, failed, dropped, cancelled and expired. Where a fact has ended the push, it
        is the outcome of those that have none.
        """
        totals = Counter(
            sent=len(self._any(_SENT)),
            received=len(self._any(_RECEIVED)),
            shown=len(self._any(_REPORTS)),
            clicked=len(self._any([_KIND.OUTCOME_KIND_CLICKED])),
            dismissed=len(self._any([_KIND.OUTCOME_KIND_DISMISSED])),
            handed_over=len(self._any([_KIND.OUTCOME_KIND_HANDED_OVER])),
        )
        settled = self._any(_SENT if is_ios else _TAKEN_OVER)
        for kind in _NOT_REACHED:
            found = self._any([kind]) - settled
            totals[_NAMES[kind]] = len(found)
            settled |= found
        if (rest := _OF_THE_REST.get(self.ending)) and self.audience is not None:
            totals[rest] += len(self.audience - settled)
        return totals

    def packed(self) -> tuple[Any, ...]:
        audience = None if self.audience is None else self.audience.serialize()
        kinds = {kind: members.serialize() for kind, members in self.outcomes.items()}
        return audience, self.pending.serialize(), kinds, self.ending

    @classmethod
    def unpacked(cls, packed: Sequence[Any]) -> "PushPart":
        audience, pending, kinds, ending = packed
        outcomes = {kind: BitMap.deserialize(members) for kind, members in kinds.items()}
        read = None if audience is None else BitMap.deserialize(audience)
        return cls(read, BitMap.deserialize(pending), outcomes, ending)

    def _any(self, kinds: Iterable[int]) -> BitMap:
        """Return those with one of the outcomes."""
        return BitMap.union(BitMap(), *(self.outcomes[kind] for kind in kinds if kind in self.outcomes))


@dataclass(slots=True)
class PushInProgress:
    """A push in progress, by partition."""

    msgid: int
    appkey: str
    kind: int
    id_count: int
    is_ios: bool
    parts: dict[int, PushPart]
    devices: int = 0

    @classmethod
    def of(cls, send: SendPush, partitions: int) -> "PushInProgress":
        """Return the push that a command requests. `partitions`: the installation's number.

        ValueError: the columns of its list do not have one length.
        """
        if send.audience.HasField("devices"):
            parts = {partition: PushPart.of(members) for partition, members in _listed(send).items()}
        else:
            parts = {partition: PushPart(None, BitMap()) for partition in range(partitions)}
        is_ios = send.platform == PLATFORM_IOS
        return cls(send.msgid, send.appkey, send.kind, max(send.id_count, 1), is_ios, parts)

    def start(self, partition: int, audience: bytes, count: int) -> None:
        part = self.parts.get(partition)
        if part is None or part.ending:
            return
        self.devices += count
        if part.audience is None:
            part = self.parts[partition] = PushPart.of(BitMap.deserialize(audience))
        part.end_if_done()

    def end(self, partition: int, ending: PushEnding.ValueType) -> None:
        """End the push in a partition by a fact of delivery."""
        if (part := self.parts.get(partition)) is not None:
            part.ending = part.ending or ending

    def count(self, partition: int, msgid: int, kinds: Numbers, numbers: Numbers) -> None:
        """Count outcomes of one message id in a partition."""
        part = self.parts.get(partition)
        if part is None:
            return
        final = _FINAL_OF_IOS if self.is_ios else _FINAL
        for kind in _COUNTED.intersection(kinds.tolist()):
            members = BitMap(numbers[kinds == kind].tolist()) if self.id_count == 1 else BitMap([msgid - self.msgid])
            part.count(kind, members, is_final=kind in final)

    @property
    def is_over(self) -> bool:
        return all(part.ending for part in self.parts.values())

    def fact(self, time_ms: int) -> PushEndFact:
        event_id = hashlib.blake2b(f"push-end/{self.msgid}".encode(), digest_size=16).digest()
        totals: Counter[str] = Counter()
        for part in self.parts.values():
            totals.update(part.totals(is_ios=self.is_ios))
        endings = [part.ending for part in self.parts.values()]
        ended = PushEnded(
            msgid=self.msgid,
            appkey=self.appkey,
            kind=Kind.ValueType(self.kind),
            ending=max(endings, default=PushEnding.PUSH_ENDING_COMPLETED),
            devices=self.devices,
            **totals,
        )
        return PushEndFact(meta=Meta(event_id=event_id, time_ms=time_ms, writer=ROLE_NAME), ended=ended)

    def packed(self) -> bytes:
        """Return the push for a snapshot."""
        fields = (self.msgid, self.appkey, self.kind, self.id_count, self.is_ios, self.devices)
        return msgspec.msgpack.encode((*fields, {number: part.packed() for number, part in self.parts.items()}))

    @classmethod
    def unpacked(cls, packed: bytes) -> "PushInProgress":
        msgid, appkey, kind, id_count, is_ios, devices, packed_parts = msgspec.msgpack.decode(packed)
        parts = {number: PushPart.unpacked(part) for number, part in packed_parts.items()}
        return cls(msgid, appkey, kind, id_count, is_ios, parts, devices)


def _listed(send: SendPush) -> dict[int, BitMap]:
    """Return the members of a list by partition, as PushPart has them."""
    devices = send.audience.devices
    members = devices.numbers if send.id_count <= 1 else devices.id_offsets
    columns = (numpy.frombuffer(devices.partitions, "<u2").tolist(), numpy.frombuffer(members, "<u4").tolist())
    found: dict[int, BitMap] = {}
    for partition, member in zip(*columns, strict=True):
        found.setdefault(partition, BitMap()).add(member)
    return found


class CountedPushes:
    """The pushes in progress, folded from `push-commands`, `pushes` and `deliveries`. No I/O.

    `wanted`: the apps whose pushes count from now on.
    """

    def __init__(self, partitions: int) -> None:
        self.wanted: Collection[str] = frozenset()
        self._partitions = partitions
        self._by_id: dict[int, PushInProgress] = {}

    def restore(self, packed: Iterable[bytes]) -> None:
        for each in packed:
            self._add(PushInProgress.unpacked(each))

    def packed(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each push for a snapshot, under its message id."""
        for msgid, push in self._by_id.items():
            if msgid == push.msgid:
                yield msgid.to_bytes(8, "big"), push.packed()

    def forget_unwanted(self) -> None:
        for push in [push for push in self._by_id.values() if push.appkey not in self.wanted]:
            self._remove(push)

    def apply(self, record: Record, message: Any) -> list[PushEndFact]:
        """Fold a record; return the ends that follow, of pushes that are forgotten with them."""
        match message:
            case PushCommand():
                touched = self._apply_command(message)
            case PushFact():
                touched = self._apply_fact(message)
            case DeliveryFact():
                touched = {}
                for outcomes in message.outcomes.apps:
                    if outcomes.appkey in self.wanted:
                        touched |= self._count(record.partition, outcomes)
            case _:
                touched = {}
        ended = [push for push in touched.values() if push.is_over]
        for push in ended:
            self._remove(push)
        return [push.fact(message.meta.time_ms) for push in ended]

    def _apply_command(self, command: PushCommand) -> dict[int, PushInProgress]:
        send = command.send
        if not command.HasField("send") or send.appkey not in self.wanted or send.msgid in self._by_id:
            return {}
        push = PushInProgress.of(send, self._partitions)
        self._add(push)
        return {push.msgid: push}

    def _apply_fact(self, fact: PushFact) -> dict[int, PushInProgress]:
        push = self._by_id.get(fact.msgid)
        if push is None:
            return {}
        match fact.WhichOneof("fact"):
            case "started":
                push.start(fact.partition, fact.started.audience, fact.started.count)
            case "cancelled":
                push.end(fact.partition, PushEnding.PUSH_ENDING_CANCELLED)
            case "finished":
                push.end(fact.partition, PushEnding.PUSH_ENDING_EXPIRED)
            case "failed":
                push.end(fact.partition, PushEnding.PUSH_ENDING_FAILED)
            case None:
                pass
            case never:
                assert_never(never)
        return {push.msgid: push}

    def _count(self, partition: int, outcomes: AppOutcomes) -> dict[int, PushInProgress]:
        """Count the outcomes by message id. ValueError: the columns do not have one length."""
        msgids = numpy.frombuffer(outcomes.msgids, "<u8")
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")
        kinds = numpy.frombuffer(outcomes.kinds, "u1")
        if not len(msgids) == len(numbers) == len(kinds):
            raise ValueError("outcomes have columns of different lengths")
        order = numpy.argsort(msgids, kind="stable")
        bounds = numpy.flatnonzero(numpy.diff(msgids[order])) + 1
        touched: dict[int, PushInProgress] = {}
        for rows in numpy.split(order, bounds) if len(order) else ():
            msgid = int(msgids[rows[0]])
            push = self._by_id.get(msgid)
            if push is not None and push.appkey == outcomes.appkey:
                push.count(partition, msgid, kinds[rows], numbers[rows])
                touched[push.msgid] = push
        return touched

    def _add(self, push: PushInProgress) -> None:
        for msgid in range(push.msgid, push.msgid + push.id_count):
            self._by_id[msgid] = push

    def _remove(self, push: PushInProgress) -> None:
        for msgid in range(push.msgid, push.msgid + push.id_count):
            self._by_id.pop(msgid, None)


class PushEnds:
    """Service that reads the log while a webhook wants to know of the ends of pushes, and appends them."""

    name = "webhooks ends of pushes"

    def __init__(
        self, log: Log, partitions: int, subscriptions: Subscriptions, clock: Clock, snapshot: SnapshotFile
    ) -> None:
        """`partitions`: the installation's number."""
        self._log = log
        self._subscriptions = subscriptions
        self._clock = clock
        self._snapshot = snapshot
        self._partitions = partitions
        self._pushes = CountedPushes(partitions)
        self._sources = [
            Partition(topic.name, number)
            for topic in (PUSH_COMMANDS, PUSHES, DELIVERIES)
            for number in range(topic.partitions(partitions))
        ]
        self._next: dict[Partition, int] = {}
        self._known_ends: set[int] = set()
        self._unwritten: list[PushEndFact] = []
        self._saved_ms = 0

    async def run(self, ready: asyncio.Event) -> None:
        while True:
            changes = self._subscriptions.changes
            self._pushes.wanted = self._wanted_apps()
            if not self._pushes.wanted:
                self._forget()
                ready.set()
                await wait_for_first(self._clock, None, *changes)
                continue
            try:
                await self._restore()
                ready.set()
                await self._follow()
                await self._save()
            except asyncio.CancelledError:
                if self._next and not self._unwritten:  # else the records are counted again
                    await self._save()
                raise
            except CarillonError as error:  # pushes go on, whatever becomes of webhooks
                logger.error("the ends of pushes in progress are not reported", role=ROLE_NAME, error=str(error))
                self._pushes, self._next, self._unwritten = CountedPushes(self._partitions), {}, []
                self._snapshot.path.unlink(missing_ok=True)
                ready.set()
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    async def _restore(self) -> None:
        """Go on from the snapshot, or begin at the end of the log where there is none."""
        found = await asyncio.to_thread(self._snapshot.load)
        ends = await ends_of(self._log, ROLE_NAME, [*self._sources, _ENDS])
        if found is not None and all(found.offsets.get(p, 0) <= end for p, end in ends.items()):
            self._pushes.restore(value for _, value in found.blobs)
            self._next = {partition: found.offsets.get(partition, 0) for partition in (*self._sources, _ENDS)}
        else:
            if found is not None:
                logger.warning("the log has gone back: the ends of pushes in progress are not reported", role=ROLE_NAME)
            self._next = dict(ends)
            await self._save()  # else a kill before the first save would lose the pushes that were accepted meanwhile
        self._pushes.forget_unwanted()
        self._known_ends = set()
        starts = {_ENDS: self._next[_ENDS]}
        async with aclosing(read_until(ROLE_NAME, self._log, starts, {_ENDS: ends[_ENDS]})) as batches:
            async for records, offsets in batches:
                for record in records:
                    self._note_known(record)
                self._next |= offsets

    def _note_known(self, record: Record) -> None:
        try:
            self._known_ends.add(decode(record).ended.msgid)
        except UNUSABLE as error:
            leave_out(ROLE_NAME, record, error)

    async def _follow(self) -> None:
        """Read and append until no app wants it any more."""
        starts = {partition: self._next[partition] for partition in self._sources}
        order, epochs = CausalOrder(self._log.topics, starts), EpochsFromOffset()
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(starts), role=ROLE_NAME)
        try:
            while self._pushes.wanted:
                records = await retry_until_available(
                    LOG_UNAVAILABLE, partial(reader.read, _READ_AT_ONCE), role=ROLE_NAME
                )
                self._pushes.wanted = self._wanted_apps()
                due = order.put(records)
                if order.held_bytes > MAX_HELD_BYTES:
                    due += order.rest()
                counted_bytes = 0
                for record, message in due:
                    self._unwritten += self._apply(record, message, epochs)
                    counted_bytes += _RECORD_BYTES + len(record.value)
                    if counted_bytes >= _COUNTED_AT_ONCE_BYTES:
                        counted_bytes = 0
                        await asyncio.sleep(0)
                await self._append()
                if len(records) < _READ_AT_ONCE:
                    await gather_records()
                if self._clock.now_ms() >= self._saved_ms + SAVED_EVERY_MS:
                    await self._save()
        finally:
            await reader.close()

    def _apply(self, record: Record, message: Any, epochs: EpochsFromOffset) -> list[PushEndFact]:
        self._next[Partition(record.topic, record.partition)] = record.offset + 1
        try:
            if message is None or not epochs.admits(record, message):
                return []
            return self._pushes.apply(record, message)
        except UNUSABLE as error:
            leave_out(ROLE_NAME, record, error)
            return []

    async def _append(self) -> None:
        new = [fact for fact in self._unwritten if fact.ended.msgid not in self._known_ends]
        if new:
            new_records = [NewRecord(*_ENDS, str(fact.ended.msgid).encode(), fact.SerializeToString()) for fact in new]
            self._next[_ENDS] = max(await append_until_accepted(self._log, new_records, ROLE_NAME)) + 1
        self._unwritten = []

    async def _save(self) -> None:
        """Save the snapshot. An error is logged: the records behind the former one are read again."""
        blobs, offsets = list(self._pushes.packed()), dict(self._next)
        self._saved_ms = self._clock.now_ms()
        try:
            await asyncio.to_thread(self._snapshot.save, offsets, blobs)
        except UnavailableError as error:
            logger.error("webhooks could not save a snapshot; it tries again later", error=str(error))

    def _wanted_apps(self) -> frozenset[str]:
        """Return the apps of which a webhook wants to know the ends of pushes."""
        return self._subscriptions.apps_wanting(EventKind.EVENT_KIND_PUSH_FINISHED)

    def _forget(self) -> None:
        """Forget all pushes: nobody wants to know of their ends."""
        self._pushes.forget_unwanted()
        self._snapshot.path.unlink(missing_ok=True)


def snapshot_file(directory: Path) -> SnapshotFile:
    """Return the file of the snapshot in the role's directory."""
    return SnapshotFile(directory / "push-ends.snapshot", SNAPSHOT_VERSION)
