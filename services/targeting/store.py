"""Snapshots of the indexes on disk: one file a partition, captured one after the other so that queries wait less."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyroaring import BitMap

from services.domain.topics import DEVICES
from services.log.port import Partition, RecordMark
from services.replica.snapshot import Snapshot, SnapshotFile
from services.targeting.state import PartitionIndex, TargetingState, bitmaps, index_of

SCHEMA = 5
"""Version of the stored form. Increase it with every change: older files are then ignored and the log is read."""

_HEADER_KEY = b""
_encode = msgspec.msgpack.encode
_decode_key = msgspec.msgpack.Decoder(tuple[str, str, Any]).decode


class _Header(msgspec.Struct):
    """The header of a snapshot file.

    `recent`: event ids of the dedupe window. `epoch`: the highest of the registry's owners.
    """

    recent: list[bytes]
    epoch: int


_decode_header = msgspec.msgpack.Decoder(_Header).decode


class PartitionSnapshot(NamedTuple):
    """A captured partition, ready to be written."""

    offsets: dict[Partition, int]
    blobs: list[tuple[bytes, bytes]]
    marks: dict[Partition, RecordMark]


class PartitionSnapshots:
    """The snapshot files of a state in one directory. Without a usable file the partition is read from the log."""

    def __init__(self, directory: Path, state: TargetingState) -> None:
        self._state = state
        self._files = {
            number: SnapshotFile(directory / f"partition-{number:04d}.snapshot", SCHEMA) for number in state.partitions
        }
        self._saved: dict[int, dict[Partition, int]] = {}

    @property
    def partitions(self) -> list[int]:
        return list(self._files)

    def restore(self) -> None:
        """Load every usable file into the state, which must be empty."""
        for number, file in self._files.items():
            if snapshot := file.load():
                self._state.partitions[number], epoch = _restored(snapshot)
                self._state.epochs.note(Partition(DEVICES.name, number), epoch)
                self._saved[number] = snapshot.offsets

    def capture(self, number: int) -> PartitionSnapshot | None:
        """Capture a partition between two records; None if it has not changed since it was last saved."""
        partition = self._state.partitions[number]
        offsets = {Partition(topic, number): offset for topic, offset in partition.offsets.items()}
        if offsets == self._saved.get(number, {}):
            return None
        epoch = self._state.epochs.of(Partition(DEVICES.name, number))
        marks = {Partition(topic, number): mark for topic, mark in partition.marks.items()}
        return PartitionSnapshot(offsets, list(_blobs(partition, epoch)), marks)

    def write(self, number: int, snapshot: PartitionSnapshot) -> None:
        """Write a captured partition. UnavailableError: the disk refuses it; the previous file remains."""
        self._files[number].save(snapshot.offsets, snapshot.blobs, snapshot.marks)
        self._saved[number] = snapshot.offsets

    def save(self) -> None:
        """Capture and write every changed partition, while nothing is being folded."""
        for number in self._files:
            if snapshot := self.capture(number):
                self.write(number, snapshot)


def _blobs(partition: PartitionIndex, epoch: int) -> Iterator[tuple[bytes, bytes]]:
    yield _HEADER_KEY, _encode(_Header(list(partition.recent), epoch))
    for appkey, index in partition.apps.items():
        for field, value, bitmap in bitmaps(index):
            yield _encode((appkey, field, value)), bitmap.serialize()


def _restored(snapshot: Snapshot) -> tuple[PartitionIndex, int]:
    """Return the partition and the highest epoch of the registry's owners."""
    header = _decode_header(dict(snapshot.blobs[:1])[_HEADER_KEY])
    parts: dict[str, list[tuple[str, Any, BitMap]]] = {}
    for key, bitmap in snapshot.blobs[1:]:
        appkey, field, value = _decode_key(key)
        parts.setdefault(appkey, []).append(
            (field, tuple(value) if isinstance(value, list) else value, BitMap.deserialize(bitmap))
        )
    partition = PartitionIndex()
    partition.apps = {appkey: index_of(of_app) for appkey, of_app in parts.items()}
    partition.offsets = {topic: offset for (topic, _), offset in snapshot.offsets.items()}
    partition.marks = {topic: mark for (topic, _), mark in snapshot.marks.items()}
    partition.recent.extend(header.recent)
    return partition, header.epoch
