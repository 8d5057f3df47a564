"""How facts change the registry's two states, and the facts that publish changed attributes."""

from collections.abc import Callable, Iterator
from typing import assert_never

from protos.gateway.v1.sessions_pb2 import (
    SESSION_EVENT_KIND_APP_OPENED,
    SESSION_EVENT_KIND_LOGGED_IN,
    SESSION_EVENT_KIND_OPENED,
    AttributeChange,
    SessionEvent,
    SessionEventKind,
    SessionFact,
)
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.registry.v1.erasures_pb2 import ErasureFact
from services.domain.device_numbers import check_device, check_revocations
from services.domain.ids import RecordStamp
from services.domain.sealed_log import FORGOTTEN_LATE_MS
from services.domain.sealing import Sealer
from services.domain.topics import DEVICE_COMMANDS, DEVICES, SESSIONS, device_key
from services.log.port import Record
from services.log.topics import partition_of
from services.registry.decide import counted
from services.registry.store import AliasTable, ChangeTable, DeviceTable, HeldAlias
from services.replica.store import Fact

# Changes of devices' attributes as facts in `sessions`: their order among session events tells which attributes an
# event counts under.
#
# A change is written with the record of its device. If a process is killed when the log has the record alone, the
# partition's next owner writes the change before it decides anything else. A change may be in the log twice: readers
# ignore one whose revision is not above every earlier one in the partition.


class AttributeChanges:
    """The changes of attributes that the log may lack, folded from `devices` and `sessions` in any order."""

    def __init__(self, changes: ChangeTable) -> None:
        self._changes = changes
        self._stamp = RecordStamp("registry")
        self._partitions = changes.partitions()

    def apply_device(self, record: Record, fact: DeviceFact) -> None:
        """Note the change that a device record of the log made, unless `sessions` has it or will get it now."""
        cause, revision = fact.meta.cause, fact.device.attributes_revision
        is_change = revision and cause.topic == DEVICE_COMMANDS.name and cause.offset + 1 == revision
        if record.offset < 0 or not is_change:
            return
        change = _change(fact.device, fact.meta.time_ms)
        if self._changes.note(record.partition, revision, change):
            self._partitions.add(record.partition)

    def apply_change(self, partition: int, change: AttributeChange) -> None:
        """Note that `sessions` has the change, and so all earlier ones."""
        self._changes.seen(partition, change.revision)
        self._partitions.discard(partition)

    def unwritten(self, partition: int | None = None) -> list[Fact]:
        """Return the facts of the changes that the log may lack, of one partition or all; each once in a process."""
        facts = []
        for number in sorted(self._partitions if partition is None else self._partitions & {partition}):
            self._partitions.discard(number)
            for change in self._changes.unseen(number):
                fact = SessionFact(attributes_changed=change)
                self._stamp.complete(fact.meta, change.time_ms)
                facts.append(Fact(SESSIONS, number, _KEY, fact))
        return facts


_KEY = b"registry"


def change_fact(device: Device, time_ms: int) -> Fact:
    """Return the fact that the device has the attributes of its record from now on."""
    return Fact(SESSIONS, device.partition, _KEY, SessionFact(attributes_changed=_change(device, time_ms)))


def _change(device: Device, time_ms: int) -> AttributeChange:
    return AttributeChange(
        appkey=device.appkey,
        number=device.number,
        revision=device.attributes_revision,
        time_ms=time_ms,
        attributes=counted(device.attributes),
    )


DEVICES_PER_ALIAS = 10
USE_KINDS = frozenset({SESSION_EVENT_KIND_APP_OPENED, SESSION_EVENT_KIND_LOGGED_IN})
"""Session events by which somebody uses a device: they decide which device of an alias is the most recently active."""

LIFE_KINDS = USE_KINDS | {SESSION_EVENT_KIND_OPENED}
"""Session events that show that a device exists; a phone in a drawer connects by itself."""


class DeviceState:
    """The devices of the owned partitions: the last record of each, and the latest sign of life of each number.

    The state does not depend on the order in which `devices` and `sessions` are read: a standby may read a session
    before its device.
    """

    def __init__(
        self,
        devices: DeviceTable,
        changes: AttributeChanges,
        on_revocations: Callable[[], None],
        on_returns: Callable[[], None],
        sealer: Callable[[], Sealer | None] = lambda: None,
    ) -> None:
        """`sealer` returns what the process opens sealed records with."""
        self._sealer = sealer
        self._devices = devices
        self._changes = changes
        self._on_revocations = on_revocations
        self._on_returns = on_returns

    def apply(self, record: Record, message: DeviceFact | SessionFact | ErasureFact) -> None:
        if isinstance(message, ErasureFact):
            if message.HasField("erased"):
                self._forget(message)
            return
        if isinstance(message, SessionFact):
            if message.HasField("attributes_changed"):
                self._changes.apply_change(record.partition, message.attributes_changed)
            elif self._devices.note_activity(record.partition, list(_events(message, LIFE_KINDS))):
                self._on_returns()
            return
        match message.WhichOneof("fact"):
            case "device":
                check_device(message.device, record.offset)
                if self._devices.put(message.device):
                    self._on_returns()
                self._changes.apply_device(record, message)
            case "revocations":
                check_revocations(message.revocations)
                self._devices.revoke(message.revocations)
                self._on_revocations()
            case None:
                pass
            case unexpected:
                assert_never(unexpected)

    def _forget(self, fact: ErasureFact) -> None:
        """Put names in the place of tokens and aliases of an erased person in the records of other devices."""
        if (sealer := self._sealer()) is None:
            return

        def left(device: Device) -> Device | None:
            changed = sealer.without(DEVICES.name, device.partition, DeviceFact(device=device), fact.erased)
            is_erased = changed is not None and changed.device.token != device.token  # a stub takes its place
            return None if changed is None or is_erased else changed.device

        self._devices.forget(fact.erased.appkey, fact.meta.time_ms + FORGOTTEN_LATE_MS, left)


class AliasState:
    """The alias index of one instance: the devices of the aliases that the instance owns, out of all partitions.

    A device was last active when it registered, its alias was set, its app was opened, or its user logged in; a
    connection is no activity. The index is a function of the last record of each device and of its latest such
    event, so it does not depend on the order in which partitions and topics are read.

    Where an alias has more than DEVICES_PER_ALIAS devices, the surplus is marked as dropped, and queries leave dropped
    devices out. A new device marks the least recently active of the others that have not proven the alias. Where all
    others have, it marks itself if it has not, else the least recently active of them. A device that leaves the alias
    unmarks one. Which device is marked may depend on the order of reading while there is a surplus. The surplus ends
    with the dropped device's ClearAlias, which is in the log.
    """

    def __init__(self, aliases: AliasTable, shard: int, shards: int) -> None:
        self._aliases = aliases
        self._shard = shard
        self._shards = shards

    def apply(self, record: Record, message: DeviceFact | SessionFact) -> None:
        if isinstance(message, SessionFact):
            self._aliases.note_activity(record.partition, _events(message, USE_KINDS))
            return
        match message.WhichOneof("fact"):
            case "device":
                check_device(message.device, record.offset)
                self._remove_former(message.device)
                self._update(message.device, record_id(record), message.meta.time_ms)
            case "revocations" | None:
                pass
            case unexpected:
                assert_never(unexpected)

    def alias_of(self, device: Device) -> str | None:
        """Return the device's alias if this instance owns it, else None."""
        if not device.alias or device.removed_ms:
            return None
        owner = partition_of(device_key(device.appkey, device.alias), self._shards)
        return device.alias if owner == self._shard else None

    def _remove_former(self, device: Device) -> None:
        """Remove the device under its former numbers: the records that removed it there may be compacted away."""
        for number in device.former_numbers:
            former = Device(appkey=device.appkey, partition=device.partition, number=number)
            self._update(former, "", 0)

    def _update(self, device: Device, dropped_by: str, time_ms: int) -> None:
        before = self._aliases.alias_of(device.appkey, device.partition, device.number)
        alias = self.alias_of(device)
        now = HeldAlias(alias, device.alias_proven) if alias is not None else None
        if now is not None:
            self._aliases.set_alias(device)
        elif before is not None:
            self._aliases.clear_alias(device)
        if before == now:
            return
        if before is not None:
            self._restore_dropped(device.appkey, before.alias)
        if now is not None and (surplus := self._unmarked_surplus(device.appkey, now.alias)) > 0:
            self._aliases.drop_surplus(device, surplus, dropped_by, time_ms)

    def _restore_dropped(self, appkey: str, alias: str) -> None:
        if (surplus := self._unmarked_surplus(appkey, alias)) < 0:
            self._aliases.restore_most_active(appkey, alias, -surplus)

    def _unmarked_surplus(self, appkey: str, alias: str) -> int:
        """Return how many devices of the alias still have to be marked; negative if too many are marked."""
        count, dropped = self._aliases.counts(appkey, alias)
        return max(0, count - DEVICES_PER_ALIAS) - dropped


def _events(fact: SessionFact, kinds: frozenset["SessionEventKind.ValueType"]) -> Iterator[SessionEvent]:
    """Yield the session events of these kinds."""
    match fact.WhichOneof("fact"):
        case "batch":
            yield from (event for event in fact.batch.events if event.kind in kinds)
        case "counts" | "attributes_changed" | None:
            pass
        case unexpected:
            assert_never(unexpected)


def record_id(record: Record) -> str:
    """Return an id of the record that is unique in its topic."""
    return f"{record.partition}/{record.offset}"
