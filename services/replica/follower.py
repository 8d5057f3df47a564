"""The loop of every role with a state: read the log, apply facts, decide commands, append the new facts, commit.

A role's state changes by `apply` (facts) alone. Facts that a role decides are applied at once, appended to the log, and
only then committed together with the offsets, in one transaction. After a crash between append and commit, the next
start applies the facts in the log. Each fact names the command that caused it, and commands up to that one count as
decided. This is right only if all facts that follow from one partition of commands go to one own partition.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from protos.runtime.v1.log_pb2 import Meta, Position
from services.errors import UnavailableError
from services.log.decoding import decode
from services.log.port import (
    LOG_UNAVAILABLE,
    Log,
    NewRecord,
    Partition,
    Record,
    RecordMark,
    append_until_accepted,
    check_offsets,
    ends_of,
    last_records,
    marks_of,
)
from services.log.topics import Topics
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.metrics import APPLIED
from services.process.retries import retry_until_available
from services.process.worker_thread import WorkerThread
from services.replica.catch_up import CatchUp, ends_after, goal_of_now, marks_after, next_offsets, read_until
from services.replica.dead_letters import UNUSABLE, DeadLetters, RefusedKeys
from services.replica.epochs import Epochs
from services.replica.fencing import Fencing, SupersededError, log_unless_superseded
from services.replica.health import Followed
from services.replica.positions import AppliedPositions
from services.replica.store import Decider, Fact, TransactionalStore, UncommittedFacts, transaction
from services.replica.tenure import OwnerElection, SupersedingWatch, Tenure, stand_by

# Processing of one record of the live log: apply it, decide on it, and apply the facts that follow.
#
# All of it is done in the follower's thread, in transactions of its store.


class RecordProcessor:
    """Calls the decider, inside the follower's transaction. Records that cannot be processed become dead letters."""

    def __init__(
        self,
        role: str,
        topics: Topics,
        decider: Decider,
        dead_letters: DeadLetters,
        applies: frozenset[Partition],
        decides: frozenset[Partition],
        own_topics: frozenset[str],
        epochs: Epochs,
        epoch_of: Callable[[Partition], int],
        stored: Callable[[Sequence[NewRecord]], Sequence[NewRecord]],
    ) -> None:
        """`epochs`: those read so far. `epoch_of` returns the epoch of the facts that are written to a partition.

        `stored` is that of the log.
        """
        self._role = role
        self._topics = topics
        self._decider = decider
        self._dead_letters = dead_letters
        self._applies = applies
        self._decides = decides
        self._own_topics = own_topics
        self._epochs = epochs
        self._epoch_of = epoch_of
        self._stored = stored

    def apply_and_decide(self, record: Record) -> list[NewRecord]:
        """Return the records to append for the facts that were decided. Facts of former owners are ignored."""
        source = Partition(record.topic, record.partition)
        try:
            message = decode(self._topics, record)
            if not self._epochs.admits(record, message):
                return []
            if source in self._applies:
                self._decider.apply(record, message)
            facts = self._decider.decide(record, message) if source in self._decides else ()
            new_records = []
            for index, fact in enumerate(facts):
                fact.message.meta.CopyFrom(self._meta_of(record, message.meta, index))
                new_records.append(self.apply_own(fact))
        except UNUSABLE as error:
            self._dead_letters.add(record, error)
            return []
        return new_records

    def apply_own(self, fact: Fact) -> NewRecord:
        """Apply the fact if its topic is the role's own; return the record to append, with the owner's epoch."""
        if fact.message is None:
            return NewRecord(fact.topic.name, fact.partition, fact.key, b"")
        fact.message.meta.epoch = self._epoch_of(Partition(fact.topic.name, fact.partition))
        made = NewRecord(fact.topic.name, fact.partition, fact.key, fact.message.SerializeToString())
        (new_record,) = self._stored([made])
        if new_record.topic in self._own_topics:
            record = Record(new_record.topic, new_record.partition, -1, new_record.key, new_record.value)
            self._decider.apply(record, fact.message)
        return new_record

    def _meta_of(self, record: Record, command: Meta, index: int) -> Meta:
        """Return the meta of the command's fact number `index`. Deciding a command again gives the same event ids."""
        identity = f"{record.topic}/{record.partition}/{record.offset}/{index}".encode()
        return Meta(
            event_id=hashlib.blake2b(identity, digest_size=16).digest(),
            time_ms=command.time_ms,
            writer=self._role,
            origin=command.origin if command.HasField("origin") else None,
            cause=Position(topic=record.topic, partition=record.partition, offset=record.offset),
            cause_index=index,
        )


class Transactions:
    """The transactions of a follower. One that makes records stays open until they are appended and `commit` is called.

    `refused`: None where no own partition is compacted.
    """

    def __init__(
        self, role: str, store: TransactionalStore, processor: RecordProcessor, refused: RefusedKeys | None
    ) -> None:
        self._role = role
        self._store = store
        self._processor = processor
        self._refused = refused

    def apply_batch(
        self, records: Sequence[Record], offsets: Mapping[Partition, int], marks: Mapping[Partition, RecordMark]
    ) -> list[NewRecord]:
        """Apply the records; return the records to append, or commit at once where there are none."""
        with transaction(self._store):
            new_records = [each for record in records for each in self._processor.apply_and_decide(record)]
        if not new_records:
            reached(Point.FOLLOWER_APPLIED, self._role)
            self._store.commit(offsets, marks)
        return new_records

    def apply_chosen(self, choose: Callable[[], Sequence[Fact]]) -> list[NewRecord]:
        """Apply the chosen facts; return their records."""
        facts = choose()
        if not facts:
            return []
        with transaction(self._store):
            return [self._apply_own(fact) for fact in facts]

    def has_refused(self, found: Collection[tuple[Partition, bytes]]) -> bool:
        """Return whether records have to be written again; `found`: keys of records that were refused just now."""
        return self._refused is not None and (bool(found) or self._refused.waiting)

    def apply_refused(self, found: Collection[tuple[Partition, bytes]]) -> list[NewRecord]:
        """Apply the facts that are to be written again; return their records."""
        assert self._refused is not None
        with transaction(self._store):
            self._note(found)
            new_records = [self._apply_own(fact) for fact in self._refused.facts()]
        if not new_records:
            self._store.commit({})
        return new_records

    def commit(
        self,
        offsets: Mapping[Partition, int],
        marks: Mapping[Partition, RecordMark],
        found: Collection[tuple[Partition, bytes]],
    ) -> None:
        """Commit, and with it the keys of records that were refused just now."""
        self._note(found)
        self._store.commit(offsets, marks)

    def roll_back(self) -> None:
        self._store.rollback()
        if self._refused:
            self._refused.reload()

    def _note(self, found: Collection[tuple[Partition, bytes]]) -> None:
        if self._refused:
            for partition, key in found:
                self._refused.note(partition, key, refused=True)

    def _apply_own(self, fact: Fact) -> NewRecord:
        if fact.message is not None:
            fact.message.meta.writer = self._role
        return self._processor.apply_own(fact)


_LAST_WRITES_S = 5.0
Result = TypeVar("Result")


class Follower:
    """Runs one role's decider over the partitions that it owns. The decider and all queries run in one thread."""

    def __init__(
        self,
        role: str,
        log: Log,
        decider: Decider,
        store: TransactionalStore,
        dead_letters: DeadLetters,
        *,
        applies: Sequence[Partition],
        decides: Sequence[Partition] = (),
        own: Sequence[Partition] = (),
        epochs: Epochs | None = None,
        fencing: Fencing | None = None,
        refused: RefusedKeys | None = None,
        election: OwnerElection | None = None,
    ) -> None:
        """`applies`: partitions of facts to apply. `decides`: partitions to decide on; a record of a partition in both
        is applied first, and a fresh state only applies what the log already holds of it: that was decided before.
        `own`: partitions that this role alone writes its decided facts to. They are read at the start only, because
        later their facts are applied when they are made. Facts of other topics (commands to other roles) are appended
        and not applied. `epochs`: the highest that the state has applied. `fencing`: given where the own partitions
        have epochs too. `refused`: given where they are compacted. Without an `election`, `run` raises SupersededError
        once another process owns one. With it, the follower stands by until it is elected: it only applies facts. A
        follower without own partitions reads the same as standby and as owner; `own_when_elected` runs beside it.
        """
        self.role = self.name = role
        self.applied = AppliedPositions([*applies, *decides])
        self._ready: asyncio.Event | None = None
        self._is_reading = False
        self._log, self._store, self._fencing = log, store, fencing
        self._applies, self._decides = frozenset(applies), frozenset(decides)
        self._own, self._own_topics = list(own), frozenset(partition.topic for partition in own)
        self.tenure = Tenure(election)
        epochs = fencing.epochs if fencing else epochs or Epochs()
        if fencing:
            fencing.on_impossible = dead_letters.add
        self._catch_up = CatchUp(
            log.topics, decider, store, dead_letters, self._decides, self._own_topics, epochs, refused
        )
        epoch_of = fencing.epoch if fencing else lambda partition: 0
        processor = RecordProcessor(
            *(role, log.topics, decider, dead_letters, self._applies, self._decides, self._own_topics, epochs),
            *(epoch_of, log.stored),
        )
        self._transactions = Transactions(role, store, processor, refused)
        self._thread = WorkerThread(role)
        self._lock = asyncio.Lock()
        self._uncommitted = UncommittedFacts()
        self._writes: set[asyncio.Task[None]] = set()

    async def query(self, query: Callable[..., Result], *arguments: Any) -> Result:
        """Run a query between two batches, in the thread that owns the state."""
        return await self._thread.call(partial(query, *arguments))

    async def write(self, choose: Callable[[], Sequence[Fact]]) -> None:
        """Write facts that the role decides without a command, such as that a task fell due. Only after `run` is ready.

        `choose` runs between two batches, in the thread that owns the state, so no command is decided between what it
        reads and what it returns: facts for own partitions, each with an event_id and a time_ms. They are applied,
        appended and committed when this returns; cancelling the caller does not stop that. A standby waits for its
        tenure first; if the tenure ends before the facts are committed, `choose` is called again in the next one.
        """
        while True:
            ended = await self.tenure.wait()
            task = asyncio.create_task(self._write(choose))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)
            try:
                return await asyncio.shield(task)
            except (asyncio.CancelledError, SupersededError) as error:
                task.add_done_callback(log_unless_superseded)
                if self.tenure.election is None or isinstance(error, asyncio.CancelledError):
                    raise
                await ended.wait()

    async def run(self, ready: asyncio.Event) -> None:
        """Catch up, set `ready`, and follow the log until cancelled. UnavailableError: facts could not be committed."""
        self._ready = ready
        try:
            with self._uncommitted.ending():
                while True:
                    await self._follow_until_superseded(ready)
        finally:
            self.tenure.end()  # no write begins any more
            if self._writes:
                await asyncio.wait(self._writes, timeout=_LAST_WRITES_S)
            self._thread.shutdown()

    @property
    def is_caught_up(self) -> bool:
        """Whether the state has reached what was in the log at the start."""
        return self._ready is not None and self._ready.is_set()

    @property
    def followed(self) -> Followed:
        """The positions and partitions by which the process's health check judges this follower."""
        return Followed(self.role, self.applied, sorted(self._applies | self._decides), lambda: not self._is_reading)

    async def offsets(self) -> dict[Partition, int]:
        """Return the next offset of each partition that the state has applied."""
        return await self.query(self._store.offsets)

    @property
    def sources(self) -> frozenset[Partition]:
        """All partitions whose facts make up the state: a replay reads these."""
        return self._applies.union(self._own)

    async def apply_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Apply own facts, then those of other roles, up to the ends and no further, for a replay; decide nothing.

        `on_batch` is called with the number of offsets of each batch, compacted records included.
        """
        await self._check_offsets()
        for partitions in (self._own, self._applies):
            await self._apply_until(await self.offsets(), {p: ends[p] for p in partitions}, on_batch)

    async def _follow_until_superseded(self, ready: asyncio.Event) -> None:
        try:
            await self._follow(ready)
        except SupersededError as error:
            if self.tenure.election is None:
                raise
            logger.warning("another process has taken over; standing by", role=self.role, error=str(error))
            self.tenure.end()
            self.applied.interrupt(UnavailableError("another process has taken over"))
            async with self._lock:  # what `write` appends at present is committed or rolled back first
                pass

    async def _follow(self, ready: asyncio.Event) -> None:
        self._is_reading = False
        await self._check_offsets()
        others = await ends_of(self._log, self.role, self._applies - self._decides) if self.tenure.election else {}
        own_ends, election = await self._catch_up_with_own_facts(), self.tenure.election
        if election and self._own:
            await self._apply_until(await self.offsets(), others)
            ready.set()
            starts = {partition: offset for partition, offset in (await self.offsets()).items() if partition in others}
            await stand_by(self.role, self._log, others | starts | own_ends, self._own, election, self._apply_facts)
        if self._fencing:
            own_ends = await self._take_over(self._fencing)
        await self._catch_up_where_fresh()
        starts = await self.offsets()
        reading = {p: starts.get(p, 0) for p in self._applies | self._decides}
        self.applied.advance({**own_ends, **reading}, own_ends)
        self._is_reading = True
        is_alone, goal = False, await goal_of_now(self._log, self.role, reading)
        opened = reading | own_ends if self._fencing else reading
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(opened), role=self.role)
        try:
            with SupersedingWatch.of(election if self._fencing else None) as watch:
                while True:
                    if not self.tenure.is_held and await goal.is_reached(self.applied):
                        ready.set()
                        if not election or is_alone:
                            async with self._lock:
                                await self._restore_refused()
                            self.tenure.begin()
                        elif self._fencing and (is_alone := await election.wait_alone()):
                            goal = await goal_of_now(self._log, self.role, reading)
                            continue
                    await self._handle(await watch.read(reader, self.role))
        finally:
            await reader.close()

    async def _check_offsets(self) -> None:
        known = self._applies.union(self._decides, self._own)
        offsets = {partition: offset for partition, offset in (await self.offsets()).items() if partition in known}
        await check_offsets(self._log, self.role, offsets, await self.query(self._store.marks))

    async def _catch_up_with_own_facts(self) -> dict[Partition, int]:
        ends = await ends_of(self._log, self.role, self._own) if self._own else {}
        await self._apply_until(await self.offsets(), ends)
        return ends

    async def _apply_facts(self, records: Sequence[Record]) -> None:
        await self.query(self._catch_up.apply_batch, records, next_offsets(records))

    async def _take_over(self, fencing: Fencing) -> dict[Partition, int]:
        """Announce new epochs, and apply what former owners wrote before; return the ends."""
        announcements = fencing.announce(self._own)
        if self.tenure.election:
            await self.tenure.election.announce(fencing.epoch(self._own[0]))
        await append_until_accepted(self._log, announcements, self.role)
        ends = await self._catch_up_with_own_facts()
        fencing.begin(ends)
        return ends

    async def _catch_up_where_fresh(self) -> None:
        if fresh := self._applies & self._decides - (await self.offsets()).keys():
            ends = await ends_of(self._log, self.role, fresh)
            await self._apply_until({}, ends)
            await self.query(self._catch_up.apply_batch, [], ends)

    async def _apply_until(
        self,
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        on_batch: Callable[[int], None] = lambda count: None,
    ) -> None:
        reached_offsets = dict(starts)
        async with aclosing(read_until(self.role, self._log, starts, ends)) as batches:
            async for records, offsets in batches:
                await self.query(self._catch_up.apply_batch, records, offsets)
                self.applied.advance(offsets)
                on_batch(sum(offset - reached_offsets.get(p, 0) for p, offset in offsets.items()))
                reached_offsets |= offsets

    async def _handle(self, records: list[Record]) -> None:
        reached(Point.FOLLOWER_READ, self.role)
        async with self._lock:
            if self._fencing:
                records = self._fencing.check_live(records)
                self.applied.reach(self._fencing.known_ends)  # refused records too: somebody may wait for the last one
            if records:
                last = last_records(records)
                offsets, marks = {p: record.offset + 1 for p, record in last.items()}, marks_of(last)
                if new_records := await self.query(self._transactions.apply_batch, records, offsets, marks):
                    await self._append_and_commit(new_records, offsets, marks)
                else:
                    reached(Point.FOLLOWER_COMMITTED, self.role)
                    self.applied.advance(offsets)
            await self._restore_refused()
        for topic, count in Counter(record.topic for record in records).items():
            APPLIED.labels(self.role, topic).inc(count)

    async def _write(self, choose: Callable[[], Sequence[Fact]]) -> None:
        async with self._lock:
            if self.tenure.stands_by:
                raise SupersededError("the tenure ended before the facts were chosen")
            self._uncommitted.check()
            if new_records := await self.query(self._transactions.apply_chosen, choose):
                await self._append_and_commit(new_records, {}, {})

    async def _append_and_commit(
        self, new_records: list[NewRecord], offsets: Mapping[Partition, int], marks: Mapping[Partition, RecordMark]
    ) -> None:
        """Append the records and commit the transaction in which their facts were applied; an error rolls it back."""
        reached(Point.FOLLOWER_APPLIED, self.role)
        try:
            appended_at = await append_until_accepted(self._log, new_records, self.role)
            if self._fencing:
                with self._uncommitted.noted(unless=(SupersededError,)):
                    await self._fencing.check_appended(self._log, new_records, appended_at)
        except BaseException:
            await self.query(self._transactions.roll_back)
            raise
        reached(Point.FOLLOWER_APPENDED, self.role)
        produced = ends_after(new_records, appended_at)
        own = {partition: end for partition, end in produced.items() if partition.topic in self._own_topics}
        marks_of_own = {p: mark for p, mark in marks_after(new_records, appended_at).items() if p in own}
        refused = self._fencing.take_refused() if self._fencing else ()
        with self._uncommitted.noted():
            await self.query(self._transactions.commit, {**offsets, **own}, {**marks, **marks_of_own}, refused)
        reached(Point.FOLLOWER_COMMITTED, self.role)
        self.applied.advance({**offsets, **own}, produced)

    async def _restore_refused(self) -> None:
        """Write the valid records again, behind former owners' refused ones; see RefusedKeys."""
        found = self._fencing.take_refused() if self._fencing else set()
        if self._transactions.has_refused(found) and (
            new_records := await self.query(self._transactions.apply_refused, found)
        ):
            await self._append_and_commit(new_records, {}, {})
