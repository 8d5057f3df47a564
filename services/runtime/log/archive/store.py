"""The port of an archive: a directory, or a bucket of an object store."""

from pathlib import Path
from typing import Protocol

from services.runtime.log.archive.segments import SegmentName
from services.runtime.log.port import Partition

FILES = "states"
"""Folder of the files, beside those of the topics."""


def lacks_records(location: str, partition: Partition, before: int) -> str:
    """Return the error of an archive that has not all records before an offset which were removed from the log."""
    return (
        f"the archive {location} lacks records of {partition.topic}/{partition.number} before offset {before}, which"
        " the log holds no more: is it mounted? Bring its files back"
    )


class ArchiveStore(Protocol):
    """The archive's segments, and its files, which are replaced as a whole.

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
        """Return a segment's bytes. ConflictError: it is not there."""
        ...

    def write(self, partition: Partition, name: SegmentName, data: bytes) -> None:
        """Write a segment durably; it has its name only once it is whole."""
        ...

    def file_saved_ms(self, name: str) -> int | None:
        """Return the time in ms since 1970 at which a file was put here; None if there is none."""
        ...

    def get_file(self, name: str, target: Path) -> None:
        """Write a file's content to `target`. ConflictError: it is not there."""
        ...

    def put_file(self, name: str, source: Path) -> None:
        """Put a file here durably, in place of that of the same name; it is never there in part."""
        ...
