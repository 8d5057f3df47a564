"""An archive in a directory: DIRECTORY/TOPIC/PARTITION/SEGMENT, each file written once and then never changed."""

import contextlib
import os
from pathlib import Path

from services.runtime.errors import ConflictError, UnavailableError
from services.runtime.log.archive.segments import SegmentName, parse_name
from services.runtime.log.durable import make_durable
from services.runtime.log.port import Partition
from services.runtime.process.crashpoint import Point, reached

_UNFINISHED = "unfinished"


class ArchiveDirectory:
    """The ArchiveStore in a directory. UnavailableError: the disk refuses a call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = str(path)

    def names(self, partition: Partition) -> list[SegmentName]:
        """Return the names of a partition's segments, by their first offsets."""
        try:
            found = [parse_name(entry) for entry in os.listdir(self._of(partition))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(error) from error
        return sorted(name for name in found if name)

    def read(self, partition: Partition, name: SegmentName) -> bytes:
        """Return a segment's bytes. ConflictError: it is not there."""
        try:
            return (self._of(partition) / str(name)).read_bytes()
        except FileNotFoundError as error:
            raise ConflictError(f"the archive has lost a segment: {error}. Put a copy from a backup there") from error
        except OSError as error:
            raise self._unavailable(error) from error

    def write(self, partition: Partition, name: SegmentName, data: bytes) -> None:
        """Write a segment durably; it has its name only once it is whole. One that was begun before is replaced."""
        directory = self._of(partition)
        unfinished = directory / _UNFINISHED
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            reached(Point.SEGMENT_WRITTEN)
            unfinished.rename(directory / str(name))
            for changed in (directory, *directory.parents):
                make_durable(changed)
                if changed == self.path.parent:
                    break
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise self._unavailable(error) from error

    def _of(self, partition: Partition) -> Path:
        return self.path / partition.topic / f"{partition.number:04}"

    def _unavailable(self, error: OSError) -> UnavailableError:
        return UnavailableError(f"the archive {self.path} does not work: {error}")
