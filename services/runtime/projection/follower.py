"""The loop of every role with a state: read the log, fold facts, decide commands, append the new facts, commit.

A role's state changes by `apply` (facts) and by nothing else. Facts it decides are applied at once, inside the same
transaction, appended to the log, and only then committed together with the offsets. A crash between append and commit
is healed at the next start: the facts already in the log are folded first, and each names the command that caused it;
the commands up to that one count as decided. This holds where the facts that follow from one partition of commands
go to one own partition.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from protos.runtime.v1.log_pb2 import Meta, Position
from services.runtime.errors import BusyError, UnavailableError
from services.runtime.log.decoding import decode
from services.runtime.log.port import LOG_UNAVAILABLE, Log, NewRecord, Partition, Reader, Record, check_offsets
from services.runtime.log.topics import Topic
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APPENDED, APPLIED
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.positions import AppliedPositions

_LAST_NOTES_S = 5.0
Result = TypeVar("Result")


class Fact(NamedTuple):
    """A decided record: an envelope of the topic without its meta, which the follower adds."""

    topic: Topic
    partition: int
    key: bytes
    message: Any


class Decider(Protocol):
    """What one role does with records, called from one thread."""

    def apply(self, record: Record, message: Any) -> None:
        """Fold one fact into the state."""
        ...

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        """The facts that follow from one command and the state; changes nothing."""
        ...


class TransactionalStore(Protocol):
    """Where the state and its offsets live. SqliteStore is one; MemoryStore another."""

    def offsets(self) -> dict[Partition, int]: ...
    def begin(self) -> None: ...
    def commit(self, offsets: Mapping[Partition, int]) -> None: ...
    def rollback(self) -> None: ...


class MemoryStore:
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
        rules: Decider,
        storage: TransactionalStore,
        dead_letters: DeadLetters,
        *,
        applies: Sequence[Partition],
        decides: Sequence[Partition] = (),
        own: Sequence[Partition] = (),
    ) -> None:
        """`folds`: facts of others to apply. `decides`: what to decide on; a partition in both is applied first, and
        a fresh state only folds what the log already holds of it, because that was decided before.
        `own`: where the decided facts go when this role alone writes there; folded at the start only, because
        afterwards they are applied as they are made. Drafts to other topics (commands to others) are not applied.
        """
        self.role = self.name = role
        self.applied = AppliedPositions()
        self._log = log
        self._rules = rules
        self._storage = storage
        self._dead_letters = dead_letters
        self._applies = frozenset(applies)
        self._decides = frozenset(decides)
        self._own = list(own)
        self._own_topics = {partition.topic for partition in own}
        self._own_ends: dict[Partition, int] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=role)
        self._turn = asyncio.Lock()
        self._notes: set[asyncio.Task[None]] = set()

    async def query(self, query: Callable[..., Result], *arguments: Any) -> Result:
        """Run a query between batches, in the thread that owns the state."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, query, *arguments)

    async def write(self, choose: Callable[[], Sequence[Fact]]) -> None:
        """Write down what the role decides by itself, such as that a moment has come. Only once `run` is ready.

        `choose` runs between two batches, in the thread that owns the state, so no command is decided between what it
        reads and what it returns: facts for own partitions, each with an event_id and a time_ms. They are applied,
        appended and committed when this returns, also when the caller was cancelled meanwhile.
        """
        task = asyncio.create_task(self._note(choose))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
        await asyncio.shield(task)

    async def run(self, ready: asyncio.Event) -> None:
        """Catch up, say ready, follow for ever."""
        try:
            await self._follow(ready)
        finally:
            if self._notes:
                await asyncio.wait(self._notes, timeout=_LAST_NOTES_S)
            self._thread.shutdown(wait=True)

    async def _follow(self, ready: asyncio.Event) -> None:
        await self._check_log()
        await self._catch_up_with_own_facts()
        await self._catch_up_where_fresh()
        starts = await self.offsets()
        reading = {p: starts.get(p, 0) for p in self._applies | self._decides}
        self.applied.advance({**self._own_ends, **reading}, self._own_ends)
        goal = await self._ends(reading)
        reader = await self._open(reading)
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

    async def offsets(self) -> dict[Partition, int]:
        """The next offset of each partition that the state has seen."""
        return await self.query(self._storage.offsets)

    @property
    def sources(self) -> frozenset[Partition]:
        """Everything that the state is folded from: what a replay reads."""
        return self._applies.union(self._own)

    async def apply_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Replay: fold own facts, then others', up to the ends and no further, deciding nothing.

        Tells with each batch by how many offsets it went on, those of records compacted away included.
        """
        await self._check_log()
        for partitions in (self._own, self._applies):
            await self._fold(await self.offsets(), {p: ends[p] for p in partitions}, on_batch)

    async def _check_log(self) -> None:
        offsets = await self.offsets()
        known = self._applies.union(self._decides, self._own)
        await check_offsets(self._log, self.role, {p: offset for p, offset in offsets.items() if p in known})

    def _reached(self, goal: Mapping[Partition, int]) -> bool:
        return all(end == 0 or self.applied.has(partition, end - 1) for partition, end in goal.items())

    async def _ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.ends(partitions), role=self.role)

    async def _open(self, starts: Mapping[Partition, int]) -> Reader:
        return await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(starts), role=self.role)

    async def _read(self, reader: Reader) -> list[Record]:
        return await retry_until_available(LOG_UNAVAILABLE, reader.read, role=self.role)

    async def _catch_up_with_own_facts(self) -> None:
        if self._own:
            self._own_ends = await self._ends(self._own)
            await self._fold(await self.offsets(), self._own_ends)

    async def _catch_up_where_fresh(self) -> None:
        starts = await self.offsets()
        fresh = [partition for partition in self._applies & self._decides if partition not in starts]
        if fresh:
            ends = await self._ends(fresh)
            await self._fold({}, ends)
            await self.query(self._fold_batch, [], ends)

    async def _fold(
        self,
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        on_batch: Callable[[int], None] = lambda count: None,
    ) -> None:
        behind = {p: end for p, end in ends.items() if starts.get(p, 0) < end}
        if not behind:
            return
        passed = {p: starts.get(p, 0) for p in behind}
        reader = await self._open(passed)
        try:
            while behind:
                records = await self._read(reader)
                offsets = {p: min(next_offset, ends[p]) for p, next_offset in _next_offsets(records).items()}
                records = [r for r in records if r.offset < ends[Partition(r.topic, r.partition)]]
                await self.query(self._fold_batch, records, offsets)
                self.applied.advance(offsets)
                on_batch(sum(next_offset - passed.get(p, 0) for p, next_offset in offsets.items()))
                passed |= offsets
                behind = {p: end for p, end in behind.items() if passed.get(p, 0) < end}
        finally:
            await reader.close()

    def _fold_batch(self, records: list[Record], offsets: Mapping[Partition, int]) -> None:
        decided: dict[Partition, int] = self._storage.offsets()
        self._storage.begin()
        try:
            for record in records:
                cause = self._fold_one(record).cause
                source = Partition(cause.topic, cause.partition)
                if source in self._decides and record.topic in self._own_topics:
                    decided[source] = max(decided.get(source, 0), cause.offset + 1)
        except BaseException:
            self._storage.rollback()
            raise
        self._storage.commit({**decided, **offsets})

    def _fold_one(self, record: Record) -> Meta:
        try:
            message = decode(self._log.topics, record)
            self._rules.apply(record, message)
        except (DecodeError, ValueError) as error:
            self._dead_letters.add(record, error)
            return Meta()
        meta: Meta = message.meta
        return meta

    async def _handle(self, records: list[Record]) -> None:
        reached(Point.FOLLOWER_READ, self.role)
        async with self._turn:
            await self._conclude(await self.query(self._apply_batch, records), _next_offsets(records))
        for topic, count in Counter(record.topic for record in records).items():
            APPLIED.labels(self.role, topic).inc(count)

    async def _note(self, choose: Callable[[], Sequence[Fact]]) -> None:
        async with self._turn:
            new_records = await self.query(self._apply_noted, choose)
            if new_records:
                await self._conclude(new_records, {})

    async def _conclude(self, new_records: list[NewRecord], offsets: Mapping[Partition, int]) -> None:
        reached(Point.FOLLOWER_APPLIED, self.role)
        try:
            produced = await self._append(new_records)
        except BaseException:
            await self.query(self._storage.rollback)
            raise
        if new_records:
            reached(Point.FOLLOWER_APPENDED, self.role)
        own = {partition: end for partition, end in produced.items() if partition.topic in self._own_topics}
        await self.query(self._storage.commit, {**offsets, **own})
        reached(Point.FOLLOWER_COMMITTED, self.role)
        self.applied.advance({**offsets, **own}, produced)

    async def _append(self, new_records: list[NewRecord]) -> dict[Partition, int]:
        while new_records:
            try:
                offsets = await self._log.append(new_records)
            except (BusyError, UnavailableError) as error:
                logger.warning("the log takes no facts; trying again", role=self.role, error=str(error))
                await asyncio.sleep(0.5)
            else:
                return _produced(new_records, offsets)
        return {}

    def _apply_batch(self, records: list[Record]) -> list[NewRecord]:
        self._storage.begin()
        try:
            return [new_record for record in records for new_record in self._one(record)]
        except BaseException:
            self._storage.rollback()
            raise

    def _apply_noted(self, choose: Callable[[], Sequence[Fact]]) -> list[NewRecord]:
        facts = choose()
        if not facts:
            return []
        self._storage.begin()
        try:
            return [self._noted(fact) for fact in facts]
        except BaseException:
            self._storage.rollback()
            raise

    def _noted(self, fact: Fact) -> NewRecord:
        fact.message.meta.writer = self.role
        return self._own_draft(fact)

    def _one(self, record: Record) -> list[NewRecord]:
        source = Partition(record.topic, record.partition)
        try:
            message = decode(self._log.topics, record)
            if source in self._applies:
                self._rules.apply(record, message)
            facts = self._rules.decide(record, message) if source in self._decides else ()
        except (DecodeError, ValueError) as error:
            self._dead_letters.add(record, error)
            return []
        return [self._stamped(record, message.meta, index, fact) for index, fact in enumerate(facts)]

    def _stamped(self, record: Record, command: Meta, index: int, fact: Fact) -> NewRecord:
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
        return self._own_draft(fact)

    def _own_draft(self, fact: Fact) -> NewRecord:
        new_record = NewRecord(fact.topic.name, fact.partition, fact.key, fact.message.SerializeToString())
        if new_record.topic in self._own_topics:
            self._rules.apply(
                Record(new_record.topic, new_record.partition, -1, new_record.key, new_record.value), fact.message
            )
        return new_record


def _next_offsets(records: Sequence[Record]) -> dict[Partition, int]:
    return {Partition(record.topic, record.partition): record.offset + 1 for record in records}


def _produced(new_records: Sequence[NewRecord], offsets: Sequence[int]) -> dict[Partition, int]:
    produced: dict[Partition, int] = {}
    for new_record, offset in zip(new_records, offsets, strict=True):
        partition = Partition(new_record.topic, new_record.partition)
        produced[partition] = max(produced.get(partition, 0), offset + 1)
        APPENDED.labels(new_record.topic).inc()
    return produced
