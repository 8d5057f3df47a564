"""What a follower does with one record of the live log: apply it, decide on it, and apply the facts that follow."""

import hashlib
from collections.abc import Callable

from google.protobuf.message import DecodeError

from protos.runtime.v1.log_pb2 import Meta, Position
from services.runtime.log.decoding import decode
from services.runtime.log.port import NewRecord, Partition, Record
from services.runtime.log.topics import Topics
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.decider import Decider, Fact


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
        epoch_of: Callable[[Partition], int],
    ) -> None:
        """`epoch_of` returns the epoch of the facts that are written to a partition."""
        self._role = role
        self._topics = topics
        self._decider = decider
        self._dead_letters = dead_letters
        self._applies = applies
        self._decides = decides
        self._own_topics = own_topics
        self._epoch_of = epoch_of

    def apply_and_decide(self, record: Record) -> list[NewRecord]:
        """Return the records to append for the facts that were decided."""
        source = Partition(record.topic, record.partition)
        try:
            message = decode(self._topics, record)
            if source in self._applies:
                self._decider.apply(record, message)
            facts = self._decider.decide(record, message) if source in self._decides else ()
        except (DecodeError, ValueError) as error:
            self._dead_letters.add(record, error)
            return []
        new_records = []
        for index, fact in enumerate(facts):
            fact.message.meta.CopyFrom(self._meta_of(record, message.meta, index))
            new_records.append(self.apply_own(fact))
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
