"""Copies of an archive in a directory, which may be taken while a process adds segments."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from services.runtime.errors import CarillonError
from services.runtime.log.archive.directory import ArchiveDirectory
from services.runtime.log.archive.log import contiguous_from
from services.runtime.log.archive.segments import SegmentName, is_whole
from services.runtime.log.archive.store import lacks_records
from services.runtime.log.durable import make_durable
from services.runtime.log.port import Partition


def copy_archive(source: Path, target: Path, begins: Mapping[Partition, int]) -> int:
    """Copy every segment of the archive, checked and durable on return; return their bytes.

    `begins`: the first offset of each partition of the log from which records were removed. The archive must have all
    records before it, because a state that is built anew reads from offset 0.
    CarillonError: the source cannot be read, is damaged or lacks records, or the target cannot be written.
    """
    archive = ArchiveDirectory(source)
    size = 0
    try:
        for partition, names in _complete_segments(archive, begins).items():
            for name in names:
                size += _copy_segment(archive, partition, name, target)
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
    for partition, begin in begins.items():
        if missing_before := contiguous_from(segments[partition], begin):
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
