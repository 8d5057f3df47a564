"""The event log port: what every role reads from and appends to.

Vocabulary. A *topic* has numbered *partitions*; a partition is a sequence of *records*, each at an *offset* counted
from 0. A *position* is (topic, partition, offset) of one record. The *end* of a partition is the offset that the next
record will get. A record is *appended* once the log has made it durable: `append` returns then and not before.
Compaction may remove a record of a compacted topic when a later one has the same key, never the last one, so offsets
may have gaps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Partition(NamedTuple):
    topic: str
    number: int


class Record(NamedTuple):
    """One record as read."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


class Draft(NamedTuple):
    """One record to append."""

    topic: str
    partition: int
    key: bytes
    value: bytes


MAX_RECORD_BYTES = 900_000
"""Key and value of one record together; larger drafts are refused with InputError before anything is appended."""


class Reader(Protocol):
    """A cursor over some partitions, each read in order from where it was opened."""

    async def read(self, max_records: int = 5000) -> list[Record]:
        """The next records, at least one; waits until there is one. Order is kept inside a partition.

        UnavailableError: the log cannot be reached; call again. ConflictError: a start lies before the first
        record kept or behind the end, so the state that named it belongs to another log.
        """
        ...

    async def close(self) -> None: ...


class Log(Protocol):
    """An event log. One object a process; every method may be called concurrently from one event loop."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append durably; returns each draft's offset, in order.

        Records of one partition keep the order of the calls. Not atomic over partitions: on an error some may have been
        appended, so a caller repeats with the same event ids. An offset is -1 where the log knows that the
        record is there but not where (take the end instead). BusyError: too much is waiting already.
        """
        ...

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        """A reader that starts at the given offsets."""
        ...

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The end of each partition."""
        ...

    async def last(self, partition: Partition) -> Record | None:
        """The last record of the partition, or None when it is empty."""
        ...

    async def close(self) -> None: ...
