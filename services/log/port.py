"""The event log port, which every role reads from and appends to.

Vocabulary. A *topic* has numbered *partitions*; a partition is a sequence of *records*, each at an *offset* counted
from 0. A *position* is (topic, partition, offset) of one record. The *end* of a partition is the offset of the next
record. A record is *appended* once the log has made it durable; `append` does not return earlier.
Compaction may remove a record of a compacted topic when a later one of the same partition has the same key, never the
last one of a key, so offsets may have gaps. A record with an empty value changes nothing; in a `removable` topic it may
remove the earlier records of its key, and lose its own key then.
"""

import asyncio
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from services.errors import BusyError, ConflictError, InputError, UnavailableError
from services.log.topics import Topics
from services.process.logs import logger
from services.process.metrics import APPENDED
from services.process.retries import retry_until_available


class Partition(NamedTuple):
    topic: str
    number: int


Path: TypeAlias = tuple[tuple[int, int], ...]
"""The way to a part of an envelope: the number of each field, and the index in a repeated one."""

OpenedPart: TypeAlias = tuple[Path, bytes]
"""What was sealed of a part of an envelope: fields of the message that the path leads to, or the string."""


class Record(NamedTuple):
    """One record as read, with the stored key and value. `opened`: its sealed values, if the reader has their keys."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    opened: tuple[OpenedPart, ...] = ()


class NewRecord(NamedTuple):
    """One record to append."""

    topic: str
    partition: int
    key: bytes
    value: bytes


MAX_RECORD_BYTES = 900_000
"""Upper bound of the key and value of one record together; larger records are refused with InputError."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Upper bound of the records that wait to be appended, with RECORD_OVERHEAD_BYTES for each; beyond it, BusyError."""

RECORD_OVERHEAD_BYTES = 500


class RecordMark(NamedTuple):
    """A record that a state has applied: its offset, the length of its value, and the CRC-32 of key and value.

    It is stored beside the state's offsets: a log that lost its tail and has grown since has another record there. The
    record in the log may be longer than the applied one, by a signature behind it.
    """

    offset: int
    length: int
    crc: int


class TrimmedError(ConflictError):
    """The next record to read lies before the first one that the log holds."""


_MARKS_S = 60.0
"""Time-out in seconds for reading a state's marked records at its start; those not read by then are not checked."""

LOG_UNAVAILABLE = "the log does not answer"
"""Log message of a reader that tries again."""


def checked_size(new_records: Sequence[NewRecord], topics: Topics) -> int:
    """Return the bytes that the records occupy while they wait. InputError: unknown topic, or a record too large."""
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
    """A cursor over some partitions, each read in order from its start offset."""

    async def read(self, max_records: int = 5000) -> list[Record]:
        """Return the next records; wait until there is at least one. Each partition is read in order.

        UnavailableError: the log cannot be reached, call again; or the reader was closed. TrimmedError: the position
        lies before the first stored record. ConflictError: it lies behind the end, as of a log that went back.
        A cancelled call skips no record.
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

    @property
    def identity(self) -> str:
        """The id that the log got when it was created, by which another log in its place is noticed; "" for none."""
        ...

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        """Append durably; return the offset of each record, in order.

        Records of one partition keep the order of the calls. Not atomic over partitions: on an error some may have been
        appended, so a caller repeats with the same event ids. BusyError: too many bytes wait already, nothing was
        appended. InputError: a record is not valid, nothing was appended. UnavailableError: the log cannot be
        written within its time-out, or was closed. Cancelling the call does not stop the append.
        """
        ...

    def stored(self, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        """Return the records as `append` stores them, but for signatures behind them; it takes these as they are.

        A state that applies its own facts before they are appended marks these: RecordMark is of what the log holds.
        """
        ...

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        """Return a reader that starts at the given offsets. ConflictError as for Reader.read, where known at once."""
        ...

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset from which on each partition is stored: 0 until retention has removed records."""
        ...

    async def unarchived_from(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset from which on each partition's records are in the log itself, not only in its archive."""
        ...

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the end of each partition."""
        ...

    async def last(self, partition: Partition) -> Record | None:
        """Return the last record of the partition, or None when it is empty."""
        ...

    async def check_writable(self) -> None:
        """Find out, without appending a record, whether records can be appended.

        UnavailableError: the log takes no records now.
        """
        ...

    async def close(self) -> None:
        """Append the records that wait, close the readers and release the log, within a bounded time."""
        ...


def trimmed(partition: Partition, start: int, begin: int) -> str:
    """Return the error of a start before the first stored record."""
    return (
        f"the event log holds {partition.topic}/{partition.number} from offset {begin} on, but the next record to read"
        f" is {start}: those between were removed, and a rebuild would miss them too. Restore a backup of the log, or"
        f" of a state that has read up to {begin} (docs/operators/backup.md), and see that no retention is set."
        " Where `carillon archive` removed them, set CARILLON_KAFKA_ARCHIVE_DIR"
    )


def went_back(partition: Partition, start: int, end: int) -> str:
    """Return the error of a start behind the end."""
    return (
        f"the event log ends at offset {end} of {partition.topic}/{partition.number}, but the next record to read is"
        f" {start}: the log has gone back, or the state belongs to another log. {LOG_WENT_BACK_HELP}"
    )


def grew_again(partition: Partition, offset: int) -> str:
    """Return the error of a log whose record at an offset differs from the one that the state has applied."""
    return (
        f"the event log holds another record at offset {offset} of {partition.topic}/{partition.number} than the one"
        f" that was read: the log has gone back and grown since, or the state belongs to another log."
        f" {LOG_WENT_BACK_HELP}"
    )


LOG_WENT_BACK_HELP = (
    "Bring back the log that was read. Where it is lost, stop every process; run `carillon restore --lost-devices N`, N"
    " at least the devices of one app that registered in the lost time, so that no device number is given out twice;"
    " then `carillon replay ROLE` for every role with a state; then start (docs/operators/backup.md, A log that went"
    " back)"
)
"""Help for an operator whose log has lost records that were read already. `carillon replay` alone is not enough."""


async def ends_of(log: Log, role: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the ends of the partitions, as soon as the log answers."""
    return await retry_until_available(LOG_UNAVAILABLE, lambda: log.ends(partitions), role=role)


def mark_of(offset: int, record: Record | NewRecord) -> RecordMark:
    """Return the mark of a record at this offset."""
    return RecordMark(offset, len(record.value), zlib.crc32(record.value, zlib.crc32(record.key)))


def last_records(records: Sequence[Record]) -> dict[Partition, Record]:
    """Return the last record of each partition."""
    last = {record[:2]: record for record in records}
    return {Partition(*place): record for place, record in last.items()}


def last_marks(records: Sequence[Record]) -> dict[Partition, RecordMark]:
    """Return the mark of the last record of each partition."""
    return marks_of(last_records(records))


def marks_of(last: Mapping[Partition, Record]) -> dict[Partition, RecordMark]:
    """Return the marks of these records."""
    return {partition: mark_of(record.offset, record) for partition, record in last.items()}


async def check_offsets(
    log: Log, role: str, offsets: Mapping[Partition, int], marks: Mapping[Partition, RecordMark] | None = None
) -> None:
    """Check that the log holds all records before a state's next `offsets`, and the marked records unchanged.

    ConflictError: the log lacks records, or a marked record has changed. A marked record that was compacted away,
    trimmed or archived, or that cannot be read soon, is not checked.
    """
    if not offsets:
        return
    begins = await retry_until_available(LOG_UNAVAILABLE, lambda: log.begins(offsets), role=role)
    ends = await ends_of(log, role, offsets)
    for partition, next_offset in offsets.items():
        if next_offset > ends[partition]:
            raise ConflictError(f"the state of {role}: {went_back(partition, next_offset, ends[partition])}")
        if next_offset < begins[partition]:
            raise ConflictError(f"the state of {role}: {trimmed(partition, next_offset, begins[partition])}")
    kept = {partition: mark for partition, mark in (marks or {}).items() if partition in offsets}
    if not kept:
        return
    firsts = await retry_until_available(LOG_UNAVAILABLE, lambda: log.unarchived_from(kept), role=role)
    within = {p: mark for p, mark in kept.items() if firsts[p] <= mark.offset < ends[p]}
    for partition, record in (await _records_at(log, role, within)).items():
        if not _is_marked(record, within[partition]):
            raise ConflictError(f"the state of {role}: {grew_again(partition, record.offset)}")


def _is_marked(record: Record, mark: RecordMark) -> bool:
    """Return whether the record may be the marked one. Without a value, as where a signature is wrong, it may."""
    return not record.value or mark_of(mark.offset, record._replace(value=record.value[: mark.length])) == mark


async def _records_at(log: Log, role: str, marks: Mapping[Partition, RecordMark]) -> dict[Partition, Record]:
    """Return the records at the marked offsets, as far as they were not removed and can be read soon."""
    found: dict[Partition, Record] = {}
    missing = dict(marks)
    try:
        async with asyncio.timeout(_MARKS_S):
            while missing:
                await retry_until_available(LOG_UNAVAILABLE, lambda: _find(log, missing, found), role=role)
    except (TimeoutError, TrimmedError) as error:
        logger.warning(
            "the last records that a state has applied could not be read from the log, so they were not compared",
            role=role,
            partitions=len(missing),
            error=type(error).__name__,
        )
    return found


async def _find(log: Log, missing: dict[Partition, RecordMark], found: dict[Partition, Record]) -> None:
    """Move marked records from `missing` to `found`, and drop removed ones, until a read brings none of them.

    The caller then opens another reader, so few records are read of a partition that has many behind its mark.
    """
    reader = await log.open({partition: mark.offset for partition, mark in missing.items()})
    limit = len(missing)
    try:
        before = limit + 1
        while 0 < len(missing) < before:
            before = len(missing)
            for record in await reader.read(limit):
                partition = Partition(record.topic, record.partition)
                mark = missing.pop(partition, None)
                if mark is not None and record.offset == mark.offset:
                    found[partition] = record
    finally:
        await reader.close()


# A log that passes every call on to another log.


class DelegatingLog:
    """Passes every call on; a subclass changes some of them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.topics = log.topics
        self.identity = log.identity

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        return await self._log.append(new_records)

    def stored(self, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        return self._log.stored(new_records)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return await self._log.open(starts)

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.begins(partitions)

    async def unarchived_from(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.unarchived_from(partitions)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.ends(partitions)

    async def last(self, partition: Partition) -> Record | None:
        return await self._log.last(partition)

    async def check_writable(self) -> None:
        await self._log.check_writable()

    async def close(self) -> None:
        await self._log.close()


# Appending facts that must get into the log.

_RETRY_S = 0.5


async def append_until_accepted(log: Log, new_records: Sequence[NewRecord], role: str) -> list[int]:
    """Append until the log accepts the records; return the offset of each."""
    while True:
        try:
            offsets = await log.append(new_records)
        except (BusyError, UnavailableError) as error:
            logger.warning("the log does not accept facts; trying again", role=role, error=str(error))
            await asyncio.sleep(_RETRY_S)
        else:
            for new_record in new_records:
                APPENDED.labels(new_record.topic).inc()
            return offsets
