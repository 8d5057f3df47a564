"""Segments of the archive: their names, and their content as compressed bytes.

A name contains the offsets and a checksum, so the list of a partition's names is its manifest.
"""

import hashlib
import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import cramjam
from google.protobuf.message import DecodeError

from protos.runtime.v1.archive_pb2 import ArchivedRecord, Segment
from services.runtime.errors import ConflictError
from services.runtime.log.port import Partition, Record

_NAME = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{32})\.pb\.zst")
_LEVEL = 6
_PART = 200
"""Records that are serialized at once: in between, the interpreter's lock is free for the event loop."""


class SegmentName(NamedTuple):
    """The records from offset `first` on and before `end`, and the first half of the SHA-256 of the segment's bytes."""

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
    """Return the name and the bytes of a segment of these records, which end before `end`, of the log of this id."""
    head = Segment(log=log, topic=partition.topic, partition=partition.number, first=records[0].offset, end=end)
    parts = (_part(records[start : start + _PART]) for start in range(0, len(records), _PART))
    data = bytes(
        cramjam.zstd.compress(b"".join(part.SerializeToString() for part in chain([head], parts)), level=_LEVEL)
    )
    return SegmentName(records[0].offset, end, _checksum(data)), data


def _part(records: Sequence[Record]) -> Segment:
    """Return a part of a segment: serialized messages that are joined are one message."""
    return Segment(records=[ArchivedRecord(offset=r.offset, key=r.key, value=r.value) for r in records])


def decode(log: str, partition: Partition, name: SegmentName, data: bytes) -> list[Record]:
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
    """Return whether the bytes are those for which the segment got its name."""
    return _checksum(data) == name.checksum


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
