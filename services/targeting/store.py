"""Snapshots: a file for each partition, taken one after the other, so that questions wait only for one of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyroaring import BitMap

from services.runtime.log.port import Partition
from services.runtime.projection.snapshot import Snapshot, SnapshotFile
from services.targeting.state import PartitionIndex, TargetingState, bitmaps, index_of

SCHEMA = 1
"""Raise it with every change of what is stored: older files are then left aside and the log is read instead."""

_HEAD = b""
_encode = msgspec.msgpack.encode
_key = msgspec.msgpack.Decoder(tuple[str, str, Any])


class _Head(msgspec.Struct):
    """What a partition's file holds beside bitmaps. Days are of the zone; a file of another zone is of no use."""

    zone: str
    recent: list[bytes]


_head = msgspec.msgpack.Decoder(_Head)


class Taken(NamedTuple):
    """One partition's snapshot before it is written."""

    offsets: dict[Partition, int]
    blobs: list[tuple[bytes, bytes]]


class Snapshots:
    """The files of one state, in one directory. A file that is missing or cannot be used costs a read of the log."""

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
        """Read into the state, which must be empty, whatever can be used."""
        for number, file in self._files.items():
            snapshot = file.load()
            if snapshot and (partition := _restored(snapshot, self._state.zone.key)):
                self._state.partitions[number] = partition
                self._saved[number] = snapshot.offsets

    def take(self, number: int) -> Taken | None:
        """A partition as it is now; None when it was saved like this already. To be called between two records."""
        partition = self._state.partitions[number]
        offsets = {Partition(topic, number): offset for topic, offset in partition.offsets.items()}
        if offsets == self._saved.get(number, {}):
            return None
        return Taken(offsets, list(_blobs(partition, self._state.zone.key)))

    def write(self, number: int, taken: Taken) -> None:
        """Put it on the disk. UnavailableError: the disk does not take it; the file before it is still there."""
        self._files[number].save(taken.offsets, taken.blobs)
        self._saved[number] = taken.offsets

    def save(self) -> None:
        """Take and write all that has changed, while nothing is being folded."""
        for number in self._files:
            if taken := self.take(number):
                self.write(number, taken)


def _blobs(partition: PartitionIndex, zone: str) -> Iterator[tuple[bytes, bytes]]:
    yield _HEAD, _encode(_Head(zone, list(partition.recent)))
    for appkey, index in partition.apps.items():
        for field, value, bitmap in bitmaps(index):
            yield _encode((appkey, field, value)), bitmap.serialize()


def _restored(snapshot: Snapshot, zone: str) -> PartitionIndex | None:
    head = _head.decode(dict(snapshot.blobs[:1])[_HEAD])
    if head.zone != zone:
        return None
    parts: dict[str, list[tuple[str, Any, BitMap]]] = {}
    for key, value in snapshot.blobs[1:]:
        appkey, field, of = _key.decode(key)
        parts.setdefault(appkey, []).append(
            (field, tuple(of) if isinstance(of, list) else of, BitMap.deserialize(value))
        )
    partition = PartitionIndex()
    partition.apps = {appkey: index_of(of_app) for appkey, of_app in parts.items()}
    partition.offsets = {topic: offset for (topic, _), offset in snapshot.offsets.items()}
    partition.recent.extend(head.recent)
    return partition
