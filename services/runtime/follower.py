"""The loop of every role with a state: read the log, fold facts, decide commands, append the new facts, commit.

A role's state changes by `apply` (facts) and by nothing else. Facts it decides are applied at once, inside the same
transaction, appended to the log, and only then committed together with the offsets. A crash between append and commit
is healed at the next start: the facts already in the log are folded first, and each names the command that caused it,
so that command is not decided twice.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from protos.runtime.v1.log_pb2 import Meta, Position
from services.runtime.errors import UnavailableError
from services.runtime.log import Draft, Log, Partition, Record
from services.runtime.logs import logger
from services.runtime.metrics import APPENDED, APPLIED
from services.runtime.parking import Parking
from services.runtime.progress import Progress
from services.runtime.topics import TOPICS, Topic

Answer = TypeVar("Answer")


class Fact(NamedTuple):
    """A decided record: an envelope of the topic without its meta, which the follower adds."""

    topic: Topic
    partition: int
    key: bytes
    message: Any


class Rules(Protocol):
    """What one role does with records, called from one thread."""

    def apply(self, record: Record, message: Any) -> None:
        """Fold one fact into the state."""
        ...

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        """The facts that follow from one command and the state; changes nothing."""
        ...


class Storage(Protocol):
    """Where the state and its offsets live. SqliteStore is one; MemoryStorage another."""

    def offsets(self) -> dict[Partition, int]: ...
    def begin(self) -> None: ...
    def commit(self, offsets: Mapping[Partition, int]) -> None: ...
    def rollback(self) -> None: ...


class MemoryStorage:
    """Offsets beside a state in memory, which cannot roll back; for roles that only fold."""

    def __init__(self, offsets: Mapping[Partition, int] | None = None) -> None:
        self._offsets = dict(offsets or {})

    def offsets(self) -> dict[Partition, int]:
        return dict(self._offsets)

    def begin(self) -> None:
        """Nothing to begin."""

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self._offsets.update(offsets)

    def rollback(self) -> None:
        """Nothing was decided, so a batch that failed is applied again from its start."""


class Follower:
    """Runs one role's rules over the partitions it owns. All rules and all queries run in its one thread."""

    def __init__(
        self,
        role: str,
        log: Log,
        rules: Rules,
        storage: Storage,
        parking: Parking,
        *,
        folds: Sequence[Partition],
        decides: Sequence[Partition] = (),
        own: Sequence[Partition] = (),
    ) -> None:
        """`folds`: facts of others to apply. `decides`: what to decide on; a partition in both is applied first.
        `own`: where the decided facts go when this role alone writes there; folded at the start only, because
        afterwards they are applied as they are made. Drafts to other topics (commands to others) are not applied.
        """
        self.role = role
        self.progress = Progress()
        self._log = log
        self._rules = rules
        self._storage = storage
        self._parking = parking
        self._folds = frozenset(folds)
        self._decides = frozenset(decides)
        self._own = list(own)
        self._own_topics = {partition.topic for partition in own}
        self._own_ends: dict[Partition, int] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=role)

    async def ask(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a query between batches, in the thread that owns the state."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question, *arguments)

    async def run(self, ready: asyncio.Event) -> None:
        """Catch up, say ready, follow for ever."""
        starts = await self._caught_up_with_own_facts()
        reading = {p: starts.get(p, 0) for p in self._folds | self._decides}
        self.progress.advance(reading, self._own_ends)
        goal = await self._log.ends(reading)
        reader = await self._log.open(reading)
        try:
            if self._reached(goal):
                ready.set()
            while True:
                records = await self._read(reader)
                await self._handle(records)
                if not ready.is_set() and self._reached(goal):
                    ready.set()
        finally:
            await reader.close()
            self._thread.shutdown(wait=True)

    @property
    def folded(self) -> frozenset[Partition]:
        """Everything that the state is folded from: what a replay reads."""
        return self._folds.union(self._own)

    async def fold_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Replay: fold own and others' facts up to the ends, deciding nothing; tells each batch's record count."""
        await self._fold(await self.ask(self._storage.offsets), {p: ends[p] for p in self.folded}, on_batch)

    def _reached(self, goal: Mapping[Partition, int]) -> bool:
        return all(end == 0 or self.progress.has(partition, end - 1) for partition, end in goal.items())

    async def _read(self, reader: Any) -> list[Record]:
        while True:
            try:
                return list(await reader.read())
            except UnavailableError as error:
                logger.warning("the log does not answer", role=self.role, error=str(error))
                await asyncio.sleep(1)

    async def _caught_up_with_own_facts(self) -> dict[Partition, int]:
        starts = await self.ask(self._storage.offsets)
        if not self._own:
            return starts
        self._own_ends = await self._log.ends(self._own)
        await self._fold(starts, self._own_ends)
        starts = await self.ask(self._storage.offsets)
        for partition in self._own:
            last = await self._log.last(partition)
            cause = _meta(last).cause if last else Position()
            source = Partition(cause.topic, cause.partition)
            if source in self._decides:
                starts[source] = max(starts.get(source, 0), cause.offset + 1)
        return starts

    async def _fold(
        self,
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        on_batch: Callable[[int], None] = lambda count: None,
    ) -> None:
        behind = {p: end for p, end in ends.items() if starts.get(p, 0) < end}
        if not behind:
            return
        reader = await self._log.open({p: starts.get(p, 0) for p in behind})
        try:
            while behind:
                records = await self._read(reader)
                offsets = _next_offsets(records)
                await self.ask(self._apply_batch, records, False)
                await self.ask(self._storage.commit, offsets)
                self.progress.advance(offsets)
                on_batch(len(records))
                behind = {p: end for p, end in behind.items() if not self.progress.has(p, end - 1)}
        finally:
            await reader.close()

    async def _handle(self, records: list[Record]) -> None:
        offsets = _next_offsets(records)
        facts = await self.ask(self._apply_batch, records, True)
        try:
            produced = await self._append(facts)
        except BaseException:
            await self.ask(self._storage.rollback)
            raise
        await self.ask(self._storage.commit, {**offsets, **produced})
        self.progress.advance(offsets, produced)
        for record in records:
            APPLIED.labels(self.role, record.topic).inc()

    async def _append(self, drafts: list[Draft]) -> dict[Partition, int]:
        while drafts:
            try:
                offsets = await self._log.append(drafts)
            except UnavailableError as error:
                logger.warning("the log takes no facts; trying again", role=self.role, error=str(error))
                await asyncio.sleep(0.5)
            else:
                return await self._produced(drafts, offsets)
        return {}

    async def _produced(self, drafts: list[Draft], offsets: Sequence[int]) -> dict[Partition, int]:
        produced: dict[Partition, int] = {}
        for draft, offset in zip(drafts, offsets, strict=True):
            partition = Partition(draft.topic, draft.partition)
            produced[partition] = max(produced.get(partition, 0), offset + 1)
            APPENDED.labels(draft.topic).inc()
            if offset < 0:
                produced |= await self._log.ends([partition])
        return produced

    def _apply_batch(self, records: list[Record], deciding: bool) -> list[Draft]:
        self._storage.begin()
        try:
            return [draft for record in records for draft in self._one(record, deciding)]
        except BaseException:
            self._storage.rollback()
            raise

    def _one(self, record: Record, deciding: bool) -> list[Draft]:
        source = Partition(record.topic, record.partition)
        try:
            message = decode(record)
            if not deciding or source in self._folds:
                self._rules.apply(record, message)
            facts = self._rules.decide(record, message) if deciding and source in self._decides else ()
        except (DecodeError, ValueError) as error:
            self._parking.park(record, error)
            return []
        return [self._stamped(record, message.meta, index, fact) for index, fact in enumerate(facts)]

    def _stamped(self, record: Record, command: Meta, index: int, fact: Fact) -> Draft:
        cause = Position(topic=record.topic, partition=record.partition, offset=record.offset)
        identity = f"{record.topic}/{record.partition}/{record.offset}/{index}".encode()
        fact.message.meta.CopyFrom(
            Meta(
                event_id=hashlib.blake2b(identity, digest_size=16).digest(),
                time_ms=command.time_ms,
                writer=self.role,
                origin=command.origin if command.HasField("origin") else None,
                cause=cause,
                cause_index=index,
            )
        )
        draft = Draft(fact.topic.name, fact.partition, fact.key, fact.message.SerializeToString())
        if draft.topic in self._own_topics:
            self._rules.apply(Record(draft.topic, draft.partition, -1, draft.key, draft.value), fact.message)
        return draft


def decode(record: Record) -> Any:
    """The record's envelope; DecodeError when it is none."""
    message: Message = TOPICS[record.topic].envelope()
    message.ParseFromString(record.value)
    return message


def _meta(record: Record) -> Meta:
    meta: Meta = decode(record).meta
    return meta


def _next_offsets(records: Sequence[Record]) -> dict[Partition, int]:
    return {Partition(record.topic, record.partition): record.offset + 1 for record in records}
