"""The port of an archive (a directory, or a bucket of an object store), and the format of its segments."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

import cramjam
from google.protobuf.message import DecodeError

from protos.runtime.v1.archive_pb2 import ArchivedRecord, Segment
from services.errors import ConflictError
from services.log.port import Partition, Record

# Segments of the archive: their names, and their content as compressed bytes.
#
# A name contains the offsets and a checksum, so the list of a partition's names is its manifest.

_NAME = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{32})\.pb\.zst")
_LEVEL = 6
_PART = 200
"""Records that are serialized at once: in between, the interpreter's lock is free for the event loop."""


class SegmentName(NamedTuple):
    """The name of a segment: its first offset, its end, and the first half of the SHA-256 of its bytes."""

    first: int
    end: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.first:020}-{self.end:020}-{self.checksum}.pb.zst"


def parse_name(text: str) -> SegmentName | None:
    """Return the name that `str` of a SegmentName gives, or None for any other text."""
    found = _NAME.fullmatch(text)
    return SegmentName(int(found[1]), int(found[2]), found[3]) if found else None


def encode(log: str, partition: Partition, end: int, records: Sequence[Record]) -> tuple[SegmentName, bytes]:
    """Return the name and the bytes of a segment of these records, which end before `end`. `log`: its identity."""
    head = Segment(log=log, topic=partition.topic, partition=partition.number, first=records[0].offset, end=end)
    parts = (_part(records[start : start + _PART]) for start in range(0, len(records), _PART))
    data = bytes(
        cramjam.zstd.compress(b"".join(part.SerializeToString() for part in chain([head], parts)), level=_LEVEL)
    )
    return SegmentName(records[0].offset, end, _checksum(data)), data


def _part(records: Sequence[Record]) -> Segment:
    """Return a part of a segment. Protobuf reads concatenated messages as one message."""
    return Segment(records=[ArchivedRecord(offset=r.offset, key=r.key, value=r.value) for r in records])


def decode_segment(log: str, partition: Partition, name: SegmentName, data: bytes) -> list[Record]:
    """Return the records of a segment.

    ConflictError: its bytes have changed since it was written, or it belongs to another log or partition.
    """
    place = f"the archive's segment {partition.topic}/{partition.number}/{name}"
    damaged = f"{place} is damaged: put a copy from a backup in its place (docs/operators/backup.md)"
    if not is_whole(name, data):
        raise ConflictError(damaged)
    segment = Segment()
    try:
        segment.ParseFromString(bytes(cramjam.zstd.decompress(data)))
    except (DecodeError, cramjam.DecompressionError) as error:
        raise ConflictError(damaged) from error
    if (segment.topic, segment.partition, segment.first, segment.end) != (*partition, name.first, name.end):
        raise ConflictError(f"{place} holds other records than its name says: give it back its name")
    if segment.log != log:
        raise ConflictError(
            f"{place} belongs to another log: it was written from {segment.log}, but this one is {log}. Bring that"
            " log back, or the archive of this one"
        )
    return [Record(*partition, record.offset, record.key, record.value) for record in segment.records]


def is_whole(name: SegmentName, data: bytes) -> bool:
    """Return whether the bytes have the checksum in the segment's name."""
    return _checksum(data) == name.checksum


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


STATES_FOLDER = "states"
"""Folder of the archive's files, the copies of states, beside the folders of the topics."""


def lacks_records(location: str, partition: Partition, before: int) -> str:
    """Return the error of an archive that lacks records before an offset which were removed from the log."""
    return (
        f"the archive {location} lacks records of {partition.topic}/{partition.number} before offset {before}, which"
        " the log holds no more: is it mounted? Bring its files back"
    )


class ArchiveBegin(NamedTuple):
    """Where the archive begins, once records have left it for good: the first offset that it may still have of each
    partition, and the time in ms since 1970 before which all removed records were appended.
    """

    removed_before_ms: int
    offsets: Mapping[Partition, int]

    def encoded(self) -> bytes:
        offsets = [[*partition, offset] for partition, offset in sorted(self.offsets.items())]
        return json.dumps({"removed_before_ms": self.removed_before_ms, "offsets": offsets}).encode()


NOTHING_REMOVED = ArchiveBegin(0, MappingProxyType({}))


def date_of(time_ms: int) -> str:
    """Return the date of a time in ms since 1970, in UTC, for people."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()


def decode_begin(data: bytes) -> ArchiveBegin:
    """Return what `encoded` has written."""
    read = json.loads(data)
    offsets = {Partition(topic, number): offset for topic, number, offset in read["offsets"]}
    return ArchiveBegin(read["removed_before_ms"], offsets)


class ArchiveStore(Protocol):
    """The store of an archive's segments, and of its files, which are replaced as a whole.

    Calls block, so they are made in a thread. UnavailableError: the store does not work.
    """

    @property
    def location(self) -> str:
        """The path or URL of the archive, for logs and errors."""
        ...

    def names(self, partition: Partition, *, anew: bool = False) -> list[SegmentName]:
        """Return the names of a partition's segments, by their first offsets.

        Several processes may write segments at once, so segments may overlap. `anew`: list all, also those that were
        written since the last call and lie before known ones.
        """
        ...

    def read(self, partition: Partition, name: SegmentName) -> bytes:
        """Return a segment's bytes. ConflictError: the segment does not exist."""
        ...

    def write(self, partition: Partition, name: SegmentName, data: bytes) -> None:
        """Write a segment durably; it has its name only once it is whole."""
        ...

    def begin(self) -> ArchiveBegin:
        """Return where the archive begins; NOTHING_REMOVED unless it has an end."""
        ...

    def file_saved_ms(self, name: str) -> int | None:
        """Return the time in ms since 1970 at which a file was put here; None if there is none."""
        ...

    def get_file(self, name: str, target: Path) -> None:
        """Write a file's content to `target`. ConflictError: the file does not exist in the store."""
        ...

    def put_file(self, name: str, source: Path) -> None:
        """Store a file durably, replacing a file of the same name as a whole: readers never see a part of it."""
        ...
