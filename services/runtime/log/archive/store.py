"""The port of an archive's segments: a directory, or a bucket of an object store."""

from typing import Protocol

from services.runtime.log.archive.segments import SegmentName
from services.runtime.log.port import Partition


class ArchiveStore(Protocol):
    """The archive's segments. Calls block, so they are made in a thread. UnavailableError: the store does not work."""

    @property
    def place(self) -> str:
        """Where the segments are, for messages to people."""
        ...

    def names(self, partition: Partition) -> list[SegmentName]:
        """Return the names of a partition's segments, by their first offsets."""
        ...

    def read(self, partition: Partition, name: SegmentName) -> bytes:
        """Return a segment's bytes. ConflictError: it is not there."""
        ...

    def write(self, partition: Partition, name: SegmentName, data: bytes) -> None:
        """Write a segment durably; it has its name only once it is whole."""
        ...
