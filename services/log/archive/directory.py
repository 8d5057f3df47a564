"""An archive in a directory: DIRECTORY/TOPIC/PARTITION/SEGMENT, each segment written once and then never changed.

DIRECTORY/states has the copies of states; a newer copy replaces the older one.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from services.errors import CarillonError, ConflictError, UnavailableError
from services.log.archive.log import contiguous_from
from services.log.archive.store import (
    NOTHING_REMOVED,
    STATES_FOLDER,
    ArchiveBegin,
    SegmentName,
    decode_begin,
    is_whole,
    lacks_records,
    parse_name,
)
from services.log.port import Partition
from services.process.crashpoint import Point, reached
from services.process.durable import make_durable

_BEGIN = "begin.json"
_UNFINISHED = "unfinished"
_ABANDONED_AFTER_S = 86_400


class ArchiveDirectory:
    """The ArchiveStore in a directory. UnavailableError: the disk refuses a call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = str(path)

    def names(self, partition: Partition, *, anew: bool = False) -> list[SegmentName]:
        """Return the names of a partition's segments, by their first offsets."""
        try:
            found = [parse_name(entry) for entry in os.listdir(self._of(partition))]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(error) from error
        return sorted(name for name in found if name)

    def file(self, partition: Partition, name: SegmentName) -> Path:
        """Return the path of a segment."""
        return self._of(partition) / str(name)

    def read(self, partition: Partition, name: SegmentName) -> bytes:
        """Return a segment's bytes. ConflictError: the segment does not exist."""
        try:
            return self.file(partition, name).read_bytes()
        except FileNotFoundError as error:
            raise ConflictError(f"the archive has lost a segment: {error}. Put a copy from a backup there") from error
        except OSError as error:
            raise self._unavailable(error) from error

    def write(self, partition: Partition, name: SegmentName, data: bytes) -> None:
        """Write a segment durably; it has its name only once it is whole."""
        directory = self._of(partition)
        unfinished = directory / f"{secrets.token_hex(4)}.{_UNFINISHED}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(directory, f"*.{_UNFINISHED}")
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

    def begin(self) -> ArchiveBegin:
        try:
            return decode_begin((self.path / STATES_FOLDER / _BEGIN).read_bytes())
        except FileNotFoundError:
            return NOTHING_REMOVED
        except OSError as error:
            raise self._unavailable(error) from error

    def remove_before(self, begin: ArchiveBegin) -> int:
        """Note durably where the archive begins, then remove the segments that end before; return how many.

        After a kill in between, the next call removes the others.
        """
        if begin != self.begin():
            self.put_bytes(_BEGIN, begin.encoded())
        count = 0
        for partition, offset in begin.offsets.items():
            for name in self.names(partition):
                if name.end <= offset:
                    self._remove(self.file(partition, name))
                    count += 1
        return count

    def file_names(self) -> list[str]:
        """Return the names of the archive's files, which are in STATES_FOLDER, but for unfinished ones."""
        try:
            return sorted(name for name in os.listdir(self.path / STATES_FOLDER) if not name.endswith(_UNFINISHED))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(error) from error

    def read_file(self, name: str) -> bytes:
        try:
            return (self.path / STATES_FOLDER / name).read_bytes()
        except OSError as error:
            raise self._unavailable(error) from error

    def remove_file(self, name: str) -> None:
        self._remove(self.path / STATES_FOLDER / name)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unavailable(error) from error

    def file_saved_ms(self, name: str) -> int | None:
        try:
            return int((self.path / STATES_FOLDER / name).stat().st_mtime * 1000)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(error) from error

    def get_file(self, name: str, target: Path) -> None:
        try:
            shutil.copyfile(self.path / STATES_FOLDER / name, target)
        except FileNotFoundError as error:
            raise ConflictError(f"the archive {self.path} has no file {STATES_FOLDER}/{name} any more") from error
        except OSError as error:
            raise self._unavailable(error) from error

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store a small file as `put_file` does."""
        self._put(name, lambda unfinished: unfinished.write_bytes(data))

    def put_file(self, name: str, source: Path) -> None:
        self._put(name, lambda unfinished: shutil.copyfile(source, unfinished))

    def _put(self, name: str, write: Callable[[Path], object]) -> None:
        directory = self.path / STATES_FOLDER
        unfinished = directory / f"{name}.{secrets.token_hex(4)}.{_UNFINISHED}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(directory, f"{name}.*.{_UNFINISHED}")
            write(unfinished)
            make_durable(unfinished)
            unfinished.replace(directory / name)
            for changed in (directory, self.path):
                make_durable(changed)
        except OSError as error:
            raise self._unavailable(error) from error
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def _of(self, partition: Partition) -> Path:
        return self.path / partition.topic / f"{partition.number:04}"

    def _unavailable(self, error: OSError) -> UnavailableError:
        return UnavailableError(f"the archive {self.path} does not work: {error}")


def _remove_abandoned(directory: Path, pattern: str) -> None:
    """Remove unfinished files that are older than a day: processes that were killed have left them."""
    for file in directory.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > _ABANDONED_AFTER_S:
                file.unlink()


# Copies of an archive in a directory, which may be taken while a process adds segments.


def copy_archive(source: Path, target: Path, begins: Mapping[Partition, int]) -> int:
    """Copy every segment of the archive, checked and durable on return; return their bytes.

    `begins`: the first offset of each partition of the log from which records were removed. The archive must have all
    records before it, because a state that is built anew reads from offset 0; where the archive has an end, from there
    on, and the files from which states are built anew then.
    CarillonError: the source cannot be read, is damaged or lacks records, or the target cannot be written.
    """
    archive = ArchiveDirectory(source)
    size = 0
    try:
        for partition, names in _complete_segments(archive, begins).items():
            for name in names:
                size += _copy_segment(archive, partition, name, target)
        for file in archive.file_names():
            ArchiveDirectory(target).put_file(file, source / STATES_FOLDER / file)
            size += (source / STATES_FOLDER / file).stat().st_size
        for directory in (target, *(path for path in target.rglob("*") if path.is_dir())) if size else ():
            make_durable(directory)
    except OSError as error:
        raise CarillonError(f"the archive {source} cannot be copied to {target}: {error}") from error
    return size


def _complete_segments(
    archive: ArchiveDirectory, begins: Mapping[Partition, int]
) -> dict[Partition, list[SegmentName]]:
    """Return the names of each partition's segments. CarillonError: they lack records before a partition's begin."""
    segments = {partition: archive.names(partition) for partition in sorted({*begins, *_partitions(archive.path)})}
    removed = archive.begin().offsets
    for partition, begin in begins.items():
        missing_before = contiguous_from(segments[partition], begin)
        if missing_before > removed.get(partition, 0):
            raise CarillonError(lacks_records(archive.location, partition, missing_before))
    return segments


def _partitions(archive: Path) -> Iterator[Partition]:
    """Yield the partitions that have a folder TOPIC/PARTITION; a folder may be a symlink to one on another disk."""
    for topic in _folders(archive):
        for folder in _folders(topic):
            if folder.name.isdecimal():
                yield Partition(topic.name, int(folder.name))


def _folders(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_dir()] if directory.exists() else []


def _copy_segment(archive: ArchiveDirectory, partition: Partition, name: SegmentName, target: Path) -> int:
    source = archive.file(partition, name)
    data = archive.read(partition, name)
    if not is_whole(name, data):
        raise CarillonError(f"the archive's segment {source} is damaged: put a copy from a backup in its place")
    copy = ArchiveDirectory(target).file(partition, name)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(data)
    make_durable(copy)
    return len(data)
