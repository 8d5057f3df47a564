"""Processing of one record of the live log: apply it, decide on it, and apply the facts that follow.

All of it is done in the follower's thread, in transactions of its store.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence

from protos.runtime.v1.log_pb2 import Meta, Position
from services.runtime.log.decoding import decode
from services.runtime.log.port import NewRecord, Partition, Record, RecordMark
from services.runtime.log.topics import Topics
from services.runtime.ownership.refused_keys import RefusedKeys
from services.runtime.process.crashpoint import Point, reached
from services.runtime.projection.dead_letters import UNUSABLE, DeadLetters
from services.runtime.projection.decider import Decider, Fact
from services.runtime.projection.epochs import Epochs
from services.runtime.projection.store import TransactionalStore, transaction


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
    ) -> None:
        """`epochs`: those read so far. `epoch_of` returns the epoch of the facts that are written to a partition."""
        self._role = role
        self._topics = topics
        self._decider = decider
        self._dead_letters = dead_letters
        self._applies = applies
        self._decides = decides
        self._own_topics = own_topics
        self._epochs = epochs
        self._epoch_of = epoch_of

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
        fact.message.meta.epoch = self._epoch_of(Partition(fact.topic.name, fact.partition))
        new_record = NewRecord(fact.topic.name, fact.partition, fact.key, fact.message.SerializeToString())
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

    Without `refused`, no own partition is compacted.
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
        fact.message.meta.writer = self._role
        return self._processor.apply_own(fact)
