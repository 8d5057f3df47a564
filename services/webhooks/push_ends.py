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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import msgspec
import numpy
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, PushFact
from protos.push.v1.push_pb2 import Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, EventKind, Webhook
from protos.runtime.v1.log_pb2 import Meta
from protos.webhooks.v1.push_ends_pb2 import PushEnded, PushEndFact, PushEnding
from services.domain.apps import AppDirectory
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
from services.process.clock import Clock
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.catch_up import read_until
from services.replica.dead_letters import UNUSABLE, leave_out
from services.replica.merge import CausalOrder
from services.replica.snapshot import SnapshotFile
from services.webhooks.settings import ROLE_NAME
from services.webhooks.walks import WalkEpochs

SNAPSHOT_VERSION = 1
SAVED_EVERY_MS = 60_000
MAX_HELD_BYTES = 8 * 1024 * 1024
"""Upper bound of the records that wait for their cause, beyond which they are counted without it."""

_READ_AT_ONCE = 500
_RECORD_BYTES = 400
_COUNTED_AT_ONCE_BYTES = 32 * 1024
"""Bytes of records, each with some more for its own work, after which other tasks run: about 1 ms."""

_RETRY_MS = 10_000
_ENDS = Partition(PUSH_ENDS.name, 0)

_COUNTED: Mapping[int, str] = {
    OutcomeKind.OUTCOME_KIND_SENT: "sent",
    OutcomeKind.OUTCOME_KIND_RECEIVED: "received",
    OutcomeKind.OUTCOME_KIND_SHOWN: "shown",
    OutcomeKind.OUTCOME_KIND_CLICKED: "clicked",
    OutcomeKind.OUTCOME_KIND_DISMISSED: "dismissed",
    OutcomeKind.OUTCOME_KIND_FAILED: "failed",
    OutcomeKind.OUTCOME_KIND_EXPIRED: "expired",
    OutcomeKind.OUTCOME_KIND_CANCELLED: "cancelled",
    OutcomeKind.OUTCOME_KIND_DROPPED: "dropped",
    OutcomeKind.OUTCOME_KIND_HANDED_OVER: "handed_over",
}
_FINAL: frozenset[int] = frozenset(
    {
        OutcomeKind.OUTCOME_KIND_RECEIVED,
        OutcomeKind.OUTCOME_KIND_FAILED,
        OutcomeKind.OUTCOME_KIND_EXPIRED,
        OutcomeKind.OUTCOME_KIND_CANCELLED,
        OutcomeKind.OUTCOME_KIND_DROPPED,
        OutcomeKind.OUTCOME_KIND_HANDED_OVER,
    }
)
_FINAL_OF_IOS = _FINAL | {OutcomeKind.OUTCOME_KIND_SENT}

Entry = tuple[int, int]
"""A message id and a device's number: one message of a list."""

Pending = BitMap | set[Entry] | None
"""The devices of a filter, or the messages of a list, without a final outcome; None: a filter that has not started."""


@dataclass(slots=True)
class CountedPush:
    """A push in progress. `pending`: what is left in each partition that is not over."""

    msgid: int
    appkey: str
    kind: int
    id_count: int
    is_ios: bool
    pending: dict[int, Pending]
    devices: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    ending: int = PushEnding.PUSH_ENDING_COMPLETED

    @classmethod
    def of(cls, send: SendPush, partitions: int) -> "CountedPush":
        """Return the push that a command requests. `partitions`: the installation's number.

        ValueError: the columns of its list do not have one length.
        """
        whole: dict[int, Pending] = dict.fromkeys(range(partitions))
        pending = _listed(send) if send.audience.HasField("devices") else whole
        is_ios = send.platform == PLATFORM_IOS
        return cls(send.msgid, send.appkey, send.kind, max(send.id_count, 1), is_ios, pending)

    def start(self, partition: int, audience: bytes, count: int) -> None:
        if partition not in self.pending:
            return
        self.devices += count
        if self.pending[partition] is None:
            self.pending[partition] = BitMap.deserialize(audience)
        self._end_if_done(partition)

    def end(self, partition: int, ending: int) -> None:
        """End the push in a partition by a fact of delivery."""
        if partition in self.pending:
            del self.pending[partition]
            self.ending = max(self.ending, ending)

    def count(self, partition: int, msgid: int, kinds: Sequence[int], numbers: Sequence[int]) -> None:
        """Count outcomes of one message id in a partition."""
        final = _FINAL_OF_IOS if self.is_ios else _FINAL
        pending = self.pending.get(partition)
        for kind, number in zip(kinds, numbers, strict=True):
            if name := _COUNTED.get(kind):
                self.counts[name] += 1
            if kind not in final or pending is None:
                continue
            if isinstance(pending, BitMap):
                pending.discard(number)
            else:
                pending.discard((msgid, number))
        self._end_if_done(partition)

    @property
    def is_over(self) -> bool:
        return not self.pending

    def fact(self, time_ms: int) -> PushEndFact:
        event_id = hashlib.blake2b(f"push-end/{self.msgid}".encode(), digest_size=16).digest()
        ended = PushEnded(
            msgid=self.msgid,
            appkey=self.appkey,
            kind=Kind.ValueType(self.kind),
            ending=PushEnding.ValueType(self.ending),
            devices=self.devices,
            **self.counts,
        )
        return PushEndFact(meta=Meta(event_id=event_id, time_ms=time_ms, writer=ROLE_NAME), ended=ended)

    def packed(self) -> bytes:
        """Return the push for a snapshot."""
        pending = {
            number: part.serialize() if isinstance(part, BitMap) else None if part is None else sorted(part)
            for number, part in self.pending.items()
        }
        fields = (self.appkey, self.kind, self.id_count, self.is_ios, self.devices, dict(self.counts), self.ending)
        return msgspec.msgpack.encode((self.msgid, *fields, pending))

    @classmethod
    def unpacked(cls, packed: bytes) -> "CountedPush":
        msgid, appkey, kind, id_count, is_ios, devices, counts, ending, parts = msgspec.msgpack.decode(packed)
        pending: dict[int, Pending] = {
            number: BitMap.deserialize(part)
            if isinstance(part, bytes)
            else None
            if part is None
            else {(entry[0], entry[1]) for entry in part}
            for number, part in parts.items()
        }
        return cls(msgid, appkey, kind, id_count, is_ios, pending, devices, Counter(counts), ending)

    def _end_if_done(self, partition: int) -> None:
        pending = self.pending.get(partition)
        if pending is not None and not pending:
            del self.pending[partition]


def _listed(send: SendPush) -> dict[int, Pending]:
    devices = send.audience.devices
    columns = (
        numpy.frombuffer(devices.partitions, "<u2").tolist(),
        numpy.frombuffer(devices.numbers, "<u4").tolist(),
        numpy.frombuffer(devices.id_offsets, "<u4").tolist(),
    )
    found: dict[int, set[Entry]] = {}
    for partition, number, id_offset in zip(*columns, strict=True):
        found.setdefault(partition, set()).add((send.msgid + id_offset, number))
    return dict(found)


class CountedPushes:
    """The pushes in progress, folded from `push-commands`, `pushes` and `deliveries`. No I/O.

    `wanted`: the apps whose pushes count from now on.
    """

    def __init__(self, partitions: int) -> None:
        self.wanted: Collection[str] = frozenset()
        self._partitions = partitions
        self._by_id: dict[int, CountedPush] = {}

    def restore(self, packed: Iterable[bytes]) -> None:
        for each in packed:
            self._add(CountedPush.unpacked(each))

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

    def _apply_command(self, command: PushCommand) -> dict[int, CountedPush]:
        send = command.send
        if not command.HasField("send") or send.appkey not in self.wanted or send.msgid in self._by_id:
            return {}
        push = CountedPush.of(send, self._partitions)
        self._add(push)
        return {push.msgid: push}

    def _apply_fact(self, fact: PushFact) -> dict[int, CountedPush]:
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

    def _count(self, partition: int, outcomes: AppOutcomes) -> dict[int, CountedPush]:
        """Count the outcomes by message id. ValueError: the columns do not have one length."""
        msgids = numpy.frombuffer(outcomes.msgids, "<u8")
        numbers = numpy.frombuffer(outcomes.numbers, "<u4")
        kinds = numpy.frombuffer(outcomes.kinds, "u1")
        if not len(msgids) == len(numbers) == len(kinds):
            raise ValueError("outcomes have columns of different lengths")
        order = numpy.argsort(msgids, kind="stable")
        bounds = numpy.flatnonzero(numpy.diff(msgids[order])) + 1
        touched: dict[int, CountedPush] = {}
        for rows in numpy.split(order, bounds) if len(order) else ():
            msgid = int(msgids[rows[0]])
            push = self._by_id.get(msgid)
            if push is not None and push.appkey == outcomes.appkey:
                push.count(partition, msgid, kinds[rows].tolist(), numbers[rows].tolist())
                touched[push.msgid] = push
        return touched

    def _add(self, push: CountedPush) -> None:
        for msgid in range(push.msgid, push.msgid + push.id_count):
            self._by_id[msgid] = push

    def _remove(self, push: CountedPush) -> None:
        for msgid in range(push.msgid, push.msgid + push.id_count):
            self._by_id.pop(msgid, None)


class PushEnds:
    """Service that reads the log while a webhook wants to know of the ends of pushes, and appends them."""

    name = "webhooks ends of pushes"

    def __init__(self, log: Log, partitions: int, apps: AppDirectory, clock: Clock, snapshot: SnapshotFile) -> None:
        """`partitions`: the installation's number."""
        self._log = log
        self._apps = apps
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
            change = self._apps.applied.change
            self._pushes.wanted = wanted_apps(self._apps)
            if not self._pushes.wanted:
                self._forget()
                ready.set()
                await change.wait()
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
                logger.error("the ends of pushes in progress are not told", role=ROLE_NAME, error=str(error))
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
                logger.warning("the log has gone back: the ends of pushes in progress are not told", role=ROLE_NAME)
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
        order, epochs = CausalOrder(self._log.topics, starts), WalkEpochs()
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(starts), role=ROLE_NAME)
        try:
            while self._pushes.wanted:
                records = await retry_until_available(
                    LOG_UNAVAILABLE, partial(reader.read, _READ_AT_ONCE), role=ROLE_NAME
                )
                self._pushes.wanted = wanted_apps(self._apps)
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
                if self._clock.now_ms() >= self._saved_ms + SAVED_EVERY_MS:
                    await self._save()
        finally:
            await reader.close()

    def _apply(self, record: Record, message: Any, epochs: WalkEpochs) -> list[PushEndFact]:
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

    def _forget(self) -> None:
        """Forget all pushes: nobody wants to know of their ends."""
        self._pushes.forget_unwanted()
        self._snapshot.path.unlink(missing_ok=True)


def wanted_apps(apps: AppDirectory) -> frozenset[str]:
    """Return the apps with a webhook that wants to know of the ends of pushes."""
    return frozenset(app.appkey for app in apps.with_webhooks if any(map(_wants, app.webhooks)))


def _wants(webhook: Webhook) -> bool:
    return not webhook.kinds or EventKind.EVENT_KIND_PUSH_FINISHED in webhook.kinds


def snapshot_file(directory: Path) -> SnapshotFile:
    """Return the file of the snapshot in the role's directory."""
    return SnapshotFile(directory / "push-ends.snapshot", SNAPSHOT_VERSION)
