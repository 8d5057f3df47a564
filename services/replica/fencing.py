"""Fencing: a follower owns its partitions under epochs, and finds out that another process has taken one over.

The follower announces an epoch of its own in each partition, reads the partition up to the announcement, and decides
from then on. A successor does the same with a higher epoch. All readers ignore what the former owner writes after that,
and the former owner commits nothing of it: the offsets of what it appends show that other records lie in between.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from protos.runtime.v1.log_pb2 import Meta
from services.errors import CarillonError, ConflictError, InputError, NotFoundError, PermissionDeniedError
from services.log.decoding import decode, key_in_clear
from services.log.port import Log, NewRecord, Partition, Record, went_back
from services.log.topics import Topics
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.catch_up import ends_after, read_until
from services.replica.dead_letters import leave_out
from services.replica.epochs import Epochs, ImpossibleEpochError, is_announcement, next_epoch

ANNOUNCEMENT_KEY = b"epoch/"
"""The prefix of the keys of announcements. Each announcement has a key of its own, so that compaction keeps it."""

_ID_BYTES = 16


class SupersededError(CarillonError):
    """Another process has taken over a partition; this one may not decide any more."""


class Fencing:
    """The epochs under which one follower owns partitions, and the offset in each before which it knows all records.

    `epochs` holds the highest epochs that the follower has read, and changes in the follower's thread. All methods are
    called from the event loop; `epoch` also from the follower's thread. `on_impossible` is called with each record
    behind the known ends that no owner can have written.
    """

    def __init__(
        self,
        role: str,
        topics: Topics,
        epochs: Epochs,
        clock: Clock,
        random_bits: Callable[[int], int] = secrets.randbits,
        floor: Callable[[Partition], int] = lambda partition: 0,
    ) -> None:
        """`floor` returns an epoch that the next one has to exceed, besides the highest of the partition itself."""
        self.epochs = epochs
        self._role = role
        self._topics = topics
        self._clock = clock
        self._random_bits = random_bits
        self._floor = floor
        self._own: dict[Partition, int] = {}
        self._next: dict[Partition, int] = {}
        self._announcements: set[bytes] = set()
        self._refused: set[tuple[Partition, bytes]] = set()
        self._lost: Partition | None = None
        self.on_impossible: Callable[[Record, Exception], None] = partial(leave_out, role)

    def announce(self, partitions: Iterable[Partition]) -> list[NewRecord]:
        """Choose an epoch for each partition; return the records to append, one a partition."""
        return [self._announcement(partition) for partition in partitions]

    def begin(self, ends: Mapping[Partition, int]) -> None:
        """Own the announced partitions, read up to these ends.

        SupersededError: a partition has another owner by now.
        """
        self._next = dict(ends)
        self._lost = None
        for partition, epoch in self._own.items():
            if self.epochs.of(partition) > epoch:
                raise self._superseded(partition)

    def epoch(self, partition: Partition) -> int:
        """Return the epoch of the facts that are written to the partition; 0 where it has none."""
        return self._own.get(partition, 0)

    def gaps(self, new_records: Sequence[NewRecord], offsets: Sequence[int]) -> dict[Partition, int]:
        """Return the first unknown offset of each partition where others' records may lie before these appended ones.

        SupersededError: a successor's record was found earlier, and `begin` has not been called since. ConflictError:
        the log has gone back: it has stored a record at an offset at which this process knows another one.
        """
        if self._lost is not None:
            raise self._superseded(self._lost)
        gaps: dict[Partition, int] = {}
        expected = dict(self._next)
        for new_record, offset in zip(new_records, offsets, strict=True):
            partition = Partition(new_record.topic, new_record.partition)
            if partition in self._own:
                if offset < self._next[partition]:
                    raise ConflictError(went_back(partition, self._next[partition], offset))
                if offset > expected[partition]:
                    gaps.setdefault(partition, expected[partition])
                expected[partition] = max(expected[partition], offset + 1)
        return gaps

    @property
    def known_ends(self) -> Mapping[Partition, int]:
        """The offsets before which all records of the owned partitions are known."""
        return self._next

    def advance(self, ends: Mapping[Partition, int]) -> None:
        """Note that all records before these ends are known."""
        for partition, end in ends.items():
            if partition in self._own:
                self._next[partition] = max(self._next[partition], end)

    async def check_appended(self, log: Log, new_records: Sequence[NewRecord], offsets: Sequence[int]) -> None:
        """Look for a successor's record before these records, which were appended at the offsets; note these as known.

        SupersededError: there is a successor's record.
        """
        ends = ends_after(new_records, offsets)
        starts = self.gaps(new_records, offsets)
        async with aclosing(read_until(self._role, log, starts, {p: ends[p] for p in starts})) as batches:
            async for records, _ in batches:
                for record in records:
                    self.check(record)
        self.advance(ends)

    def check_live(self, records: Sequence[Record]) -> list[Record]:
        """Return the records of partitions that are not owned.

        SupersededError: a record in an owned partition is a successor's.
        """
        others = []
        for record in records:
            partition = Partition(record.topic, record.partition)
            if partition not in self._own:
                others.append(record)
            elif record.offset >= self._next[partition]:
                self.check(record)
                self._next[partition] = record.offset + 1
        return others

    def check(self, record: Record) -> None:
        """Check that no successor wrote the record. SupersededError: a successor wrote it. Records of former owners
        pass, and so do records that no owner can have written.
        """
        partition = Partition(record.topic, record.partition)
        try:
            message = decode(self._topics, record)
            self.epochs.check_higher(record, message)
        except DecodeError:
            return
        except ImpossibleEpochError as error:
            self.on_impossible(record, error)
            return
        meta: Meta = message.meta
        is_rivals = is_announcement(message) and meta.event_id not in self._announcements
        if meta.epoch > self._own[partition] or (meta.epoch == self._own[partition] and is_rivals):
            raise self._superseded(partition)
        if meta.epoch < self._own[partition] and record.value:
            self._refused.add((partition, key_in_clear(self._topics, record, message)))

    def take_refused(self) -> set[tuple[Partition, bytes]]:
        """Return the keys of former owners' records that were found since the last call."""
        refused, self._refused = self._refused, set()
        return refused

    def _announcement(self, partition: Partition) -> NewRecord:
        epoch = next_epoch(max(self.epochs.of(partition), self._floor(partition)), self._random_bits)
        event_id = self._random_bits(8 * _ID_BYTES).to_bytes(_ID_BYTES, "big")
        self._own[partition] = epoch
        self._announcements.add(event_id)
        message: Any = self._topics[partition.topic].envelope()
        meta = Meta(event_id=event_id, time_ms=self._clock.now_ms(), writer=self._role, epoch=epoch)
        message.meta.CopyFrom(meta)
        return NewRecord(*partition, ANNOUNCEMENT_KEY + event_id.hex().encode(), message.SerializeToString())

    def _superseded(self, partition: Partition) -> SupersededError:
        self._lost = partition
        return SupersededError(
            f"another process of the role {self._role} has taken over {partition.topic}/{partition.number}; only one of"
            " those with the same CARILLON_SHARD decides"
        )


def log_unless_superseded(writing: "asyncio.Task[None]") -> None:
    """Log the error of a write for which its caller does not wait any more.

    SupersededError is not logged, nor is a refusal by the role's rules.
    """
    error = None if writing.cancelled() else writing.exception()
    is_refused = isinstance(error, (InputError, NotFoundError, ConflictError, PermissionDeniedError))
    if error is not None and not isinstance(error, SupersededError) and not is_refused:
        logger.error("facts could not be written", exc_info=error)
