"""The event log port: what every role reads from and appends to.

Vocabulary. A *topic* has numbered *partitions*; a partition is a sequence of *records*, each at an *offset* counted
from 0. A *position* is (topic, partition, offset) of one record. The *end* of a partition is the offset that the next
record will get. A record is *appended* once the log has made it durable: `append` returns then and not before.
Compaction may remove a record of a compacted topic when a later one of the same partition has the same key, never the
last one of a key, so offsets may have gaps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from services.runtime.errors import ConflictError, InputError
from services.runtime.log.topics import Topics
from services.runtime.process.retries import retry_until_available


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


class NewRecord(NamedTuple):
    """One record to append."""

    topic: str
    partition: int
    key: bytes
    value: bytes


MAX_RECORD_BYTES = 900_000
"""Key and value of one record together; larger drafts are refused with InputError before anything is appended."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""What may wait to be appended, RECORD_OVERHEAD_BYTES a record included; beyond it append raises BusyError."""

RECORD_OVERHEAD_BYTES = 500

LOG_UNAVAILABLE = "the log does not answer"
"""What every reader says while it asks again."""


def checked_size(new_records: Sequence[NewRecord], topics: Topics) -> int:
    """The bytes that the drafts take while they wait. InputError: unknown topic, or a record too large."""
    total = 0
    for new_record in new_records:
        size = len(new_record.key) + len(new_record.value)
        if size > MAX_RECORD_BYTES:
            raise InputError(f"a record of {size} bytes is too large for the event log: {MAX_RECORD_BYTES} at most")
        topic = topics.get(new_record.topic)
        if topic is None or new_record.partition < 0 or (topic.single and new_record.partition):
            raise InputError(f"the event log has no partition {new_record.topic}/{new_record.partition}")
        total += size + RECORD_OVERHEAD_BYTES
    return total


class Reader(Protocol):
    """A cursor over some partitions, each read in order from where it was opened."""

    async def read(self, max_records: int = 5000) -> list[Record]:
        """The next records, at least one; waits until there is one. Order is kept inside a partition.

        UnavailableError: the log cannot be reached, call again; or the reader was closed. ConflictError: the
        position lies before the first record kept or behind the end, so the state that named it belongs to another log.
        A call that is cancelled skips nothing.
        """
        ...

    async def close(self) -> None:
        """Stop reading; a `read` that waits raises UnavailableError."""
        ...


class Log(Protocol):
    """An event log. One object a process; every method may be called concurrently from one event loop."""

    @property
    def topics(self) -> Topics:
        """The topics that records can be appended to."""
        ...

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        """Append durably; returns each draft's offset, in order.

        Records of one partition keep the order of the calls. Not atomic over partitions: on an error some may have been
        appended, so a caller repeats with the same event ids. BusyError: too much is waiting already, nothing was
        appended. InputError: a draft is not valid, nothing was appended. UnavailableError: the log cannot be
        written within its bound, or was closed. A caller that is cancelled stops nothing.
        """
        ...

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        """A reader that starts at the given offsets. ConflictError as for Reader.read, where it shows at once."""
        ...

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The end of each partition."""
        ...

    async def last(self, partition: Partition) -> Record | None:
        """The last record of the partition, or None when it is empty."""
        ...

    async def close(self) -> None:
        """Append what waits, close the readers, let go. Bounded."""
        ...


async def check_offsets(log: Log, role: str, offsets: Mapping[Partition, int]) -> None:
    """ConflictError: the state that these offsets belong to has seen records that the log does not hold."""
    ends = await retry_until_available(LOG_UNAVAILABLE, lambda: log.ends(offsets), role=role) if offsets else {}
    for partition, next_offset in offsets.items():
        if next_offset > ends[partition]:
            raise ConflictError(
                f"the state of {role} has seen {next_offset} records of {partition.topic}/{partition.number}, but the"
                f" event log ends at {ends[partition]}: the state belongs to another log. Bring that log back, or"
                " rebuild the state with `carillon replay`"
            )
