"""The state of targeting, folded from `devices` and `sessions`: an index for each app in each owned partition."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, assert_never

from pyroaring import BitMap

from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_APP_OPENED, SessionBatch, SessionFact
from protos.push.v1.push_pb2 import Attribute
from protos.registry.v1.apps_pb2 import Revocations
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.registry.v1.erasures_pb2 import PersonErased
from services.domain.device_numbers import MAX_NUMBER, check_device, check_revocations
from services.domain.recorded_reasons import FixedReason
from services.domain.revocations import RevokedKeys
from services.domain.topics import DEVICES, SESSIONS
from services.log.port import Partition, Record, RecordMark
from services.process.clock import Clock
from services.replica.epochs import Epochs
from services.replica.store import Fact
from services.targeting.activity import AppOpens, BitSlicedCounts, hour_of
from services.targeting.index import Counts, MultiValueIndex, SingleValueIndex

_DEDUPE_WINDOW = 1024
"""Session batches of a partition whose event ids are remembered; gateways repeat a batch soon or never."""


ATTRIBUTES: dict[int, str] = {
    Attribute.ATTRIBUTE_REGION: "region",
    Attribute.ATTRIBUTE_CARRIER: "carrier",
    Attribute.ATTRIBUTE_CHANNEL: "channel",
    Attribute.ATTRIBUTE_BRAND: "brand",
    Attribute.ATTRIBUTE_OS_VERSION: "os_version",
    Attribute.ATTRIBUTE_APP_VERSION: "app_version",
}
"""The attributes that filters can name, with their fields in `protos.registry.v1.Attributes`."""


class ProvenTag(NamedTuple):
    """The value under which the index of tags holds, beside the tag itself, the devices that have proven it."""

    tag: int | str


TagValue: TypeAlias = int | str | ProvenTag


class AppIndex:
    """The devices of one app in one partition. Of removed devices only the app opens remain."""

    def __init__(self) -> None:
        self.reachable = BitMap()
        self.tags: MultiValueIndex[TagValue] = MultiValueIndex()
        self.attributes: dict[int, SingleValueIndex[str]] = {attribute: SingleValueIndex() for attribute in ATTRIBUTES}
        self.models: SingleValueIndex[tuple[str, str]] = SingleValueIndex()
        self.channels: MultiValueIndex[int] = MultiValueIndex()
        self.activity = AppOpens()

    def fields(self) -> dict[str, SingleValueIndex[Any] | MultiValueIndex[Any]]:
        """Return the index of every field but the activity. The names are stored in snapshots."""
        return {
            "tags": self.tags,
            "models": self.models,
            "channels of addresses": self.channels,
            **{f"{ATTRIBUTES[attribute]}s": index for attribute, index in self.attributes.items()},
        }

    def put(self, device: Device) -> list[int]:
        """Replace the device's fields in the state by the fields of its record; return the channels on which it has an
        address and had none.
        """
        # A slice of a repeated field is a list; to iterate over the field itself takes three times as long.
        number, attributes = device.number, device.attributes
        self.reachable.add(number)
        proven = [*map(ProvenTag, device.proven_tags[:]), *map(ProvenTag, device.proven_stags[:])]
        self.tags.put(number, [*device.tags[:], *device.stags[:], *proven])
        self.models.put(number, (attributes.brand, attributes.model) if attributes.model else None)
        for attribute, index in self.attributes.items():
            index.put(number, getattr(attributes, ATTRIBUTES[attribute]) or None)
        channels = [int(address.channel) for address in device.addresses[:]]
        former = {channel for channel, devices in self.channels.values.items() if number in devices} if channels else ()
        self.channels.put(number, channels)
        return [channel for channel in channels if channel not in former]

    def revoke(self, revocations: Revocations) -> None:
        """Remove the devices whose keys were revoked; the records that remove them one by one may come much later."""
        revoked = RevokedKeys.of(revocations)
        below = self.reachable.copy()
        below.remove_range(revoked.below, 1 << 32)
        for number in below | (self.reachable & revoked.others):
            self.remove(number)

    def remove(self, number: int) -> None:
        """Remove the device; its app opens stay."""
        self.reachable.discard(number)
        self.tags.put(number, [])
        self.channels.put(number, [])
        for field in self.fields().values():
            if isinstance(field, SingleValueIndex):
                field.put(number, None)


class PartitionIndex:
    """The indexes of one partition by app, and the next offset of each topic folded into them.

    `recent`: the event ids of the dedupe window.
    """

    def __init__(self) -> None:
        self.apps: dict[str, AppIndex] = {}
        self.offsets: dict[str, int] = {}
        self.marks: dict[str, RecordMark] = {}
        self.recent: deque[bytes] = deque(maxlen=_DEDUPE_WINDOW)

    def app(self, appkey: str) -> AppIndex:
        """Return the app's index; create it if there is none."""
        index = self.apps.get(appkey)
        if index is None:
            index = self.apps[appkey] = AppIndex()
        return index

    def is_repeated(self, event_id: bytes) -> bool:
        """Return whether a batch with this id is in the dedupe window; add it otherwise."""
        if event_id in self.recent:
            return True
        if event_id:
            self.recent.append(event_id)
        return False


class NewAddress(NamedTuple):
    """A device that has got an address on channels on which it had none."""

    appkey: str
    partition: int
    number: int
    channels: tuple[int, ...]


class NewAddresses:
    """The devices that have got addresses since the process has started: the last ones, by position, counted from 0."""

    KEPT = 10_000

    def __init__(self) -> None:
        self.until = 0
        self._latest: deque[NewAddress] = deque(maxlen=self.KEPT)

    def add(self, new: NewAddress) -> None:
        self._latest.append(new)
        self.until += 1

    def after(self, position: int) -> list[NewAddress] | None:
        """Return those from a position on; None: they are not all kept."""
        count = self.until - position
        if not 0 <= count <= len(self._latest):
            return None
        return list(islice(self._latest, len(self._latest) - count, None))


class TargetingState:
    """The state of all owned partitions; it is the follower's rules and its storage of offsets as well.

    Offsets advance with every record, so a snapshot between any two records is consistent. `epochs` are those of the
    registry's owners; the follower admits records by them.
    """

    def __init__(self, partitions: Sequence[int], clock: Clock) -> None:
        self.partitions = {number: PartitionIndex() for number in partitions}
        self.epochs = Epochs()
        self.new_addresses = NewAddresses()
        self._counts: dict[tuple[str, str], Counts[Any]] = {}
        self.on_erased: Callable[[], None] = lambda: None
        """Called in the follower's thread whenever an erased device was removed, of which older snapshots tell."""
        self._clock = clock

    def applied_partitions(self) -> list[Partition]:
        """Return the partitions that the state is folded from."""
        return [Partition(topic.name, number) for topic in (DEVICES, SESSIONS) for number in self.partitions]

    def has_any(self, erased: PersonErased) -> bool:
        """Return whether a device of an owned partition is registered still that is erased."""
        for device in erased.devices:
            partition = self.partitions.get(device.partition)
            index = partition.apps.get(erased.appkey) if partition else None
            if index is not None and device.number in index.reachable:
                return True
        return False

    def counts(self, appkey: str, field: str) -> Iterator[Counts[Any]]:
        """Yield the number of devices of each value of a field (see `AppIndex.fields`) for each partition that is added
        to it; the last is complete.

        The first question after a start counts all bitmaps of the field, and from then on every change is counted: an
        answer costs a look at each value and not at each bitmap, and fields that nobody asks for cost nothing.
        """
        counts = self._counts.get((appkey, field), {})
        for partition in self.partitions.values():
            if (index := partition.apps.get(appkey)) is not None:
                values = index.fields()[field].values
                if not values.is_counted:
                    self._counts[appkey, field] = counts
                    values.count_into(counts)
                    yield counts
        yield counts

    def hour(self) -> int:
        """Return the present hour, in which windows of activity end."""
        return hour_of(self._clock.now_ms())

    def apply(self, record: Record, message: Any) -> None:
        """Apply one fact. ValueError: the fact is impossible; nothing has changed."""
        partition = self.partitions[record.partition]
        match message:
            case DeviceFact():
                self._device(partition, record.offset, message)
            case SessionFact():
                self._sessions(partition, message)
            case _:
                raise ValueError(f"targeting does not read topic {record.topic}")
        partition.offsets[record.topic] = record.offset + 1

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        """Return nothing: targeting decides nothing."""
        return ()

    def offsets(self) -> dict[Partition, int]:
        return {
            Partition(topic, number): offset
            for number, partition in self.partitions.items()
            for topic, offset in partition.offsets.items()
        }

    def marks(self) -> dict[Partition, RecordMark]:
        return {
            Partition(topic, number): mark
            for number, partition in self.partitions.items()
            for topic, mark in partition.marks.items()
        }

    def begin(self) -> None:
        """Do nothing: the state is in memory."""

    def commit(self, offsets: Mapping[Partition, int], marks: Mapping[Partition, RecordMark] | None = None) -> None:
        """Advance past what `apply` has not, such as dead letters, and keep the mark of each last record."""
        for (topic, number), mark in (marks or {}).items():
            self.partitions[number].marks[topic] = mark
        for (topic, number), offset in offsets.items():
            known = self.partitions[number].offsets
            known[topic] = max(offset, known.get(topic, 0))

    def rollback(self) -> None:
        """Do nothing: folded records stay, and so do their offsets."""

    def digest(self) -> str:
        """Return a hash over everything but the offsets; equal states have equal digests, whatever their history."""
        digest = hashlib.sha256()
        for number, partition in sorted(self.partitions.items()):
            for appkey, index in sorted(partition.apps.items()):
                for field, value, bitmap in sorted(bitmaps(index), key=lambda entry: (entry[0], repr(entry[1]))):
                    digest.update(f"{number} {appkey} {field} {value!r} {len(bitmap)}\n".encode())
                    digest.update(bitmap.to_array())
        return digest.hexdigest()

    def _device(self, partition: PartitionIndex, offset: int, fact: DeviceFact) -> None:
        match kind := fact.WhichOneof("fact"):
            case "device":
                device = fact.device
                check_device(device, offset)
                index = partition.app(device.appkey)
                for former in device.former_numbers[:]:
                    index.remove(former)
                if device.removed_ms:
                    index.remove(device.number)
                    if device.removed_reason == FixedReason.ERASED:
                        self.on_erased()
                else:
                    if channels := index.put(device):
                        self.new_addresses.add(
                            NewAddress(device.appkey, device.partition, device.number, tuple(channels))
                        )
            case "revocations":
                check_revocations(fact.revocations)
                partition.app(fact.revocations.appkey).revoke(fact.revocations)
            case None:
                pass
            case _:
                assert_never(kind)

    def _sessions(self, partition: PartitionIndex, fact: SessionFact) -> None:
        match kind := fact.WhichOneof("fact"):
            case "batch":
                if not partition.is_repeated(fact.meta.event_id):
                    self._opens(partition, fact.batch)
            case "counts" | "attributes_changed" | None:
                pass
            case _:
                assert_never(kind)

    def _opens(self, partition: PartitionIndex, batch: SessionBatch) -> None:
        opens = [event for event in batch.events if event.kind == SESSION_EVENT_KIND_APP_OPENED]
        if any(event.number >= MAX_NUMBER for event in opens):
            raise ValueError("an app open of a device number that is not dense")
        for event in opens:
            partition.app(event.appkey).activity.add(event.number, hour_of(event.time_ms))


def bitmaps(index: AppIndex) -> Iterator[tuple[str, Any, BitMap]]:
    """Yield each bitmap of an index as (field, value, devices); a value of field `opens` is (day, bit of the count).

    The numbers in a bitmap of `opens` name an hour and a device (see HOUR_SHIFT).
    """
    if index.reachable:
        yield "reachable", None, index.reachable
    for field, values in index.fields().items():
        for value, bitmap in values.values.items():
            yield field, value, bitmap
    for day, counts in index.activity.days.items():
        for bit, part in enumerate(counts.slices):
            yield "opens", (day, bit), part


def index_of(parts: Iterable[tuple[str, Any, BitMap]]) -> AppIndex:
    """Return the index made of these parts; only the slices of a day's counts must be in order."""
    index = AppIndex()
    postings: dict[str, list[tuple[Any, BitMap]]] = {field: [] for field in index.fields()}
    days: dict[int, list[BitMap]] = {}
    for field, value, bitmap in parts:
        if field == "reachable":
            index.reachable = bitmap
        elif field == "opens":
            days.setdefault(value[0], []).append(bitmap)
        else:
            postings[field].append((value, bitmap))
    for field, values in index.fields().items():
        values.load(postings[field])
    index.activity = AppOpens({day: BitSlicedCounts(slices) for day, slices in days.items()})
    return index
