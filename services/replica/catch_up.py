"""Catching up: facts that the log holds already are applied to the state up to given ends; nothing is decided."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

from protos.runtime.v1.log_pb2 import Meta
from services.log.decoding import decode, key_in_clear
from services.log.port import (
    LOG_UNAVAILABLE,
    Log,
    NewRecord,
    Partition,
    Record,
    RecordMark,
    ends_of,
    last_marks,
    last_records,
    mark_of,
)
from services.log.topics import Topics
from services.process.retries import retry_until_available
from services.replica.dead_letters import UNUSABLE, DeadLetters, RefusedKeys
from services.replica.epochs import Epochs
from services.replica.positions import AppliedPositions
from services.replica.store import Decider, TransactionalStore, transaction

_MOST_LOOKS = 20


class CatchUp:
    """Applies facts in transactions of their own. A fact's cause counts as decided: commands up to it are skipped.

    Facts of a former owner, whose epoch is too low, are ignored together with their causes.
    """

    def __init__(
        self,
        topics: Topics,
        decider: Decider,
        store: TransactionalStore,
        dead_letters: DeadLetters,
        commands: frozenset[Partition],
        own_topics: frozenset[str],
        epochs: Epochs,
        refused: RefusedKeys | None = None,
    ) -> None:
        self._topics = topics
        self._decider = decider
        self._store = store
        self._dead_letters = dead_letters
        self._commands = commands
        self._own_topics = own_topics
        self._epochs = epochs
        self._refused = refused

    def apply_batch(self, records: Sequence[Record], offsets: Mapping[Partition, int]) -> None:
        """Apply the facts, and commit them with their offsets and with the offsets of the commands that caused own
        facts.
        """
        decided: dict[Partition, int] = self._store.offsets()
        with transaction(self._store):
            for record in records:
                cause = self._apply(record).cause
                source = Partition(cause.topic, cause.partition)
                if source in self._commands and record.topic in self._own_topics:
                    decided[source] = max(decided.get(source, 0), cause.offset + 1)
        self._store.commit({**decided, **offsets}, last_marks(records))

    def _apply(self, record: Record) -> Meta:
        try:
            message = decode(self._topics, record)
            partition = Partition(record.topic, record.partition)
            admitted = self._epochs.admits(record, message)
            if self._refused and record.topic in self._own_topics and record.value:
                self._refused.note(partition, key_in_clear(self._topics, record, message), refused=not admitted)
            if not admitted:
                return Meta()
            self._decider.apply(record, message)
        except UNUSABLE as error:
            self._dead_letters.add(record, error)
            return Meta()
        meta: Meta = message.meta
        return meta


async def read_until(
    role: str, log: Log, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> AsyncGenerator[tuple[list[Record], dict[Partition, int]], None]:
    """Yield the records from the starts (0 where none is given) up to the ends, and the next offsets after each batch.

    Offsets of records that were compacted away are passed over.
    """
    behind = {p: end for p, end in ends.items() if starts.get(p, 0) < end}
    if not behind:
        return
    reader = await retry_until_available(
        LOG_UNAVAILABLE, lambda: log.open({p: starts.get(p, 0) for p in behind}), role=role
    )
    try:
        while behind:
            records = await retry_until_available(LOG_UNAVAILABLE, reader.read, role=role)
            offsets = {p: min(next_offset, ends[p]) for p, next_offset in next_offsets(records).items()}
            yield [r for r in records if r.offset < ends[Partition(r.topic, r.partition)]], offsets
            behind = {p: end for p, end in behind.items() if offsets.get(p, 0) < end}
    finally:
        await reader.close()


class CatchUpGoal:
    """The ends that a reader of the log must reach before its state counts as caught up: the ends at its creation.

    While a compacted partition is read, compaction may replace records before that end by later ones behind it. So its
    end is looked up again until nothing was appended since the last look, at most `_MOST_LOOKS` times: a reader is
    faster than the writers, so it reads for less time after each look, in which compaction removes less.
    """

    def __init__(self, log: Log, role: str, ends: Mapping[Partition, int]) -> None:
        self._log = log
        self._role = role
        self._ends = dict(ends)
        self._compacted = [partition for partition in ends if log.topics[partition.topic].compacted]
        self._looks = _MOST_LOOKS if self._compacted else 0

    async def is_reached(self, applied: AppliedPositions) -> bool:
        """Return whether the reader has applied all that it must; once True, it stays so."""
        while applied.has_all(self._ends):
            if not self._looks:
                return True
            self._looks -= 1
            ends = await ends_of(self._log, self._role, self._compacted)
            if applied.has_all(ends):
                self._looks = 0
            self._ends |= ends
        return False

    async def wait_reached(self, applied: AppliedPositions) -> None:
        """Return once a reader that runs in another task has applied all that it must."""
        while not await self.is_reached(applied):
            await applied.wait((partition, end - 1) for partition, end in self._ends.items() if end)


async def goal_of_now(log: Log, role: str, partitions: Iterable[Partition]) -> CatchUpGoal:
    """Return the goal of a reader of these partitions: their ends as soon as the log answers."""
    return CatchUpGoal(log, role, await ends_of(log, role, partitions))


def next_offsets(records: Sequence[Record]) -> dict[Partition, int]:
    """Return the offset after the last record of each partition."""
    return {partition: record.offset + 1 for partition, record in last_records(records).items()}


def ends_after(new_records: Sequence[NewRecord], offsets: Sequence[int]) -> dict[Partition, int]:
    """Return the offset after the last of the records in each partition, which were appended at these offsets."""
    ends: dict[Partition, int] = {}
    for new_record, offset in zip(new_records, offsets, strict=True):
        partition = Partition(new_record.topic, new_record.partition)
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def marks_after(new_records: Sequence[NewRecord], offsets: Sequence[int]) -> dict[Partition, RecordMark]:
    """Return the mark of the last of the records in each partition, which were appended at these offsets."""
    last: dict[Partition, tuple[int, NewRecord]] = {}
    for new_record, offset in zip(new_records, offsets, strict=True):
        partition = Partition(new_record.topic, new_record.partition)
        if partition not in last or offset > last[partition][0]:
            last[partition] = (offset, new_record)
    return {partition: mark_of(offset, new_record) for partition, (offset, new_record) in last.items()}
