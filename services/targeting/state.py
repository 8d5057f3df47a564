"""What targeting knows, folded from `devices` and `sessions`: an index for each app in each owned partition."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never
from zoneinfo import ZoneInfo

from pyroaring import BitMap

from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_APP_OPENED, SessionBatch, SessionFact
from protos.registry.v1.apps_pb2 import Revocations
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from services.domain.revocations import RevokedKeys
from services.domain.topics import DEVICES, SESSIONS
from services.runtime.log.port import Partition, Record
from services.runtime.process.clock import Clock
from services.runtime.projection.follower import Fact
from services.targeting.activity import Activity, day_of
from services.targeting.counts import Counts
from services.targeting.index import Column, SetColumn

MAX_NUMBER = 1 << 26
"""Device numbers are dense, so one beyond this is a writer's mistake and not a device."""

_REMEMBERED = 1024
"""Batches of sessions whose event ids are kept in each partition: a gateway repeats soon what it must repeat."""

_DAY_MS = 86_400_000


class AppIndex:
    """The devices of one app in one partition. Removed ones are known to `activity` only."""

    def __init__(self) -> None:
        self.reachable = BitMap()
        self.tags: SetColumn[int | str] = SetColumn()
        self.regions: Column[str] = Column()
        self.carriers: Column[str] = Column()
        self.channels: Column[str] = Column()
        self.brands: Column[str] = Column()
        self.models: Column[tuple[str, str]] = Column()
        self.os_versions: Column[str] = Column()
        self.app_versions: Column[str] = Column()
        self.activity = Activity()

    def columns(self) -> dict[str, Column[Any] | SetColumn[Any]]:
        """Every field but the activity. The names stand in snapshots."""
        return {
            "tags": self.tags,
            "regions": self.regions,
            "carriers": self.carriers,
            "channels": self.channels,
            "brands": self.brands,
            "models": self.models,
            "os_versions": self.os_versions,
            "app_versions": self.app_versions,
        }

    def put(self, device: Device) -> None:
        """Let the record replace all that is known about its device."""
        number, attributes = device.number, device.attributes
        self.reachable.add(number)
        self.tags.put(number, [*device.tags, *device.stags])
        self.regions.put(number, attributes.region or None)
        self.carriers.put(number, attributes.carrier or None)
        self.channels.put(number, attributes.channel or None)
        self.brands.put(number, attributes.brand or None)
        self.models.put(number, (attributes.brand, attributes.model) if attributes.model else None)
        self.os_versions.put(number, attributes.os_version or None)
        self.app_versions.put(number, attributes.app_version or None)

    def revoke(self, revocations: Revocations) -> None:
        """Forget the devices whose keys were revoked; the records that remove them one by one may come much later."""
        revoked = RevokedKeys.of(revocations)
        for number in self.reachable & (BitMap(range(revoked.below)) | revoked.others):
            self.remove(number)

    def remove(self, number: int) -> None:
        """Forget all about the device but its app opens."""
        self.reachable.discard(number)
        self.tags.put(number, [])
        for column in self.columns().values():
            if isinstance(column, Column):
                column.put(number, None)


class PartitionIndex:
    """The apps of one partition, and the next offsets of what was folded into them, true at any moment."""

    def __init__(self) -> None:
        self.apps: dict[str, AppIndex] = {}
        self.offsets: dict[str, int] = {}
        self.recent: deque[bytes] = deque(maxlen=_REMEMBERED)

    def app(self, appkey: str) -> AppIndex:
        """The app's index, made when there is none."""
        index = self.apps.get(appkey)
        if index is None:
            index = self.apps[appkey] = AppIndex()
        return index

    def repeated(self, event_id: bytes) -> bool:
        """Whether a batch with this id was folded lately; remembers it."""
        if event_id in self.recent:
            return True
        if event_id:
            self.recent.append(event_id)
        return False


class TargetingState:
    """All owned partitions: the rules by which they change, and the storage of their offsets.

    Offsets are noted record by record: a snapshot between any two records is consistent.
    """

    def __init__(self, partitions: Sequence[int], zone: ZoneInfo, clock: Clock) -> None:
        self.partitions = {number: PartitionIndex() for number in partitions}
        self.zone = zone
        self._clock = clock

    def folds(self) -> list[Partition]:
        """What the state is folded from."""
        return [Partition(topic.name, number) for topic in (DEVICES, SESSIONS) for number in self.partitions]

    def today(self) -> int:
        return day_of(self._clock.now_ms(), self.zone)

    def apply(self, record: Record, message: Any) -> None:
        """Fold one fact; ValueError, with nothing changed, when it cannot be true."""
        partition = self.partitions[record.partition]
        match message:
            case DeviceFact():
                self._device(partition, message)
            case SessionFact():
                self._sessions(partition, message)
            case _:
                raise ValueError(f"targeting does not read topic {record.topic}")
        partition.offsets[record.topic] = record.offset + 1

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        """Nothing follows from a fact here."""
        return ()

    def offsets(self) -> dict[Partition, int]:
        return {
            Partition(topic, number): offset
            for number, partition in self.partitions.items()
            for topic, offset in partition.offsets.items()
        }

    def begin(self) -> None:
        """Nothing to begin: the state is in memory."""

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Step over records that were parked; the others were noted as they were folded."""
        for (topic, number), offset in offsets.items():
            known = self.partitions[number].offsets
            known[topic] = max(offset, known.get(topic, 0))

    def rollback(self) -> None:
        """Nothing to undo: what was folded stays, and its offsets with it."""

    def digest(self) -> str:
        """A hash over everything but the offsets: equal states have equal digests, whatever their history."""
        digest = hashlib.sha256()
        for number, partition in sorted(self.partitions.items()):
            for appkey, index in sorted(partition.apps.items()):
                for field, value, bitmap in sorted(bitmaps(index), key=lambda entry: (entry[0], repr(entry[1]))):
                    digest.update(f"{number} {appkey} {field} {value!r} {len(bitmap)}\n".encode())
                    digest.update(bitmap.to_array())
        return digest.hexdigest()

    def _device(self, partition: PartitionIndex, fact: DeviceFact) -> None:
        match kind := fact.WhichOneof("fact"):
            case "device":
                device = fact.device
                if device.number >= MAX_NUMBER:
                    raise ValueError(f"device number {device.number} is not dense")
                index = partition.app(device.appkey)
                for former in device.former_numbers:
                    index.remove(former)
                if device.removed_ms:
                    index.remove(device.number)
                else:
                    index.put(device)
            case "revocations":
                partition.app(fact.revocations.appkey).revoke(fact.revocations)
            case None:
                pass
            case _:
                assert_never(kind)

    def _sessions(self, partition: PartitionIndex, fact: SessionFact) -> None:
        match kind := fact.WhichOneof("fact"):
            case "batch":
                if not partition.repeated(fact.meta.event_id):
                    self._opens(partition, fact.batch)
            case "counts" | None:
                pass
            case _:
                assert_never(kind)

    def _opens(self, partition: PartitionIndex, batch: SessionBatch) -> None:
        latest_ms = self._clock.now_ms() + _DAY_MS
        for event in batch.events:
            # A gateway whose clock is days ahead must not push the true days out of the windows.
            if event.kind == SESSION_EVENT_KIND_APP_OPENED and event.time_ms <= latest_ms:
                partition.app(event.appkey).activity.add(event.number, day_of(event.time_ms, self.zone))


def bitmaps(index: AppIndex) -> Iterator[tuple[str, Any, BitMap]]:
    """All that an index consists of: (field, value, devices); an open's value is (day, slice of its count)."""
    if index.reachable:
        yield "reachable", None, index.reachable
    for field, column in index.columns().items():
        for value, bitmap in column.values.items():
            yield field, value, bitmap
    for day, counts in index.activity.days.items():
        for place, part in enumerate(counts.slices):
            yield "opens", (day, place), part


def index_of(parts: Iterable[tuple[str, Any, BitMap]]) -> AppIndex:
    """The index that consists of these parts, in any order but the slices of a day's counts."""
    index = AppIndex()
    postings: dict[str, list[tuple[Any, BitMap]]] = {field: [] for field in index.columns()}
    days: dict[int, list[BitMap]] = {}
    for field, value, bitmap in parts:
        if field == "reachable":
            index.reachable = bitmap
        elif field == "opens":
            days.setdefault(value[0], []).append(bitmap)
        else:
            postings[field].append((value, bitmap))
    for field, column in index.columns().items():
        column.load(postings[field])
    index.activity = Activity({day: Counts(slices) for day, slices in days.items()})
    return index
