"""How facts change the registry's two states. Facts are folded, nothing is decided here."""

from collections.abc import Callable, Iterator
from typing import assert_never

from protos.gateway.v1.sessions_pb2 import (
    SESSION_EVENT_KIND_APP_OPENED,
    SESSION_EVENT_KIND_LOGGED_IN,
    SESSION_EVENT_KIND_OPENED,
    SessionEvent,
    SessionFact,
)
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from services.domain.topics import device_key
from services.registry.store import AliasTable, DeviceTable
from services.runtime.log.port import Record
from services.runtime.log.topics import partition_of

DEVICES_PER_ALIAS = 10
SIGNS_OF_LIFE = frozenset({SESSION_EVENT_KIND_OPENED, SESSION_EVENT_KIND_APP_OPENED, SESSION_EVENT_KIND_LOGGED_IN})


class DeviceState:
    """The devices of the partitions owned.

    The state is the last record of each device and the latest sign of life after it was made: the same for every
    order in which the log gives `devices` and `sessions`, as long as a number's first record comes before its
    sessions. It does when a role runs (a device opens sessions once it is registered) and when one is replayed (own
    facts are folded first).
    """

    def __init__(self, devices: DeviceTable, on_revocations: Callable[[], None]) -> None:
        self._devices = devices
        self._on_revocations = on_revocations

    def apply(self, record: Record, message: DeviceFact | SessionFact) -> None:
        if isinstance(message, SessionFact):
            for event in signs_of_life(message):
                self._devices.touch(event.appkey, record.partition, event.number, event.time_ms)
            return
        match message.WhichOneof("fact"):
            case "device":
                self._devices.put(message.device)
            case "revocations":
                self._devices.revoke(message.revocations)
                self._on_revocations()
            case None:
                pass
            case unexpected:
                assert_never(unexpected)


class AliasState:
    """The alias index of one instance: of all devices, those with an alias that is this instance's.

    A device was last active when it registered, when its alias was set, or at its latest sign of life, whichever is
    last. Members and their moments are a function of the last record of each device and the greatest moment of its
    sessions, so they do not depend on the order in which partitions and topics are read.

    An alias with more devices than DEVICES_PER_ALIAS has that many too many marked as dropped, and look-ups leave
    them out at once. A newcomer marks the least recently active of the others; a device that leaves gives a mark
    back. Which one is marked may depend on the order of reading, but no longer than the alias is overfull: the
    device's ClearAlias, and so the outcome, is in the log.
    """

    def __init__(self, aliases: AliasTable, shard: int, shards: int) -> None:
        self._aliases = aliases
        self._shard = shard
        self._shards = shards

    def apply(self, record: Record, message: DeviceFact | SessionFact) -> None:
        if isinstance(message, SessionFact):
            for event in signs_of_life(message):
                self._aliases.touch(event.appkey, record.partition, event.number, event.time_ms)
            return
        match message.WhichOneof("fact"):
            case "device":
                self._forget_former(message.device)
                self._place(message.device, origin(record), message.meta.time_ms)
            case "revocations" | None:
                pass
            case unexpected:
                assert_never(unexpected)

    def alias_of(self, device: Device) -> str | None:
        """The alias under which the device is found here."""
        if not device.alias or device.removed_ms:
            return None
        owner = partition_of(device_key(device.appkey, device.alias), self._shards)
        return device.alias if owner == self._shard else None

    def _forget_former(self, device: Device) -> None:
        """The record that removed the device under a former number may have been compacted away."""
        for number in device.former_numbers:
            former = Device(appkey=device.appkey, partition=device.partition, number=number)
            self._place(former, "", 0)

    def _place(self, device: Device, by: str, moment_ms: int) -> None:
        before = self._aliases.alias_of(device.appkey, device.partition, device.number)
        alias = self.alias_of(device)
        if alias is not None:
            self._aliases.join(device)
        elif before is not None:
            self._aliases.leave(device)
        if before == alias:
            return
        if before is not None:
            self._give_marks_back(device.appkey, before)
        if alias is not None and (too_many := self._too_many(device.appkey, alias)) > 0:
            self._aliases.drop_least_active(device, too_many, by, moment_ms)

    def _give_marks_back(self, appkey: str, alias: str) -> None:
        if (too_many := self._too_many(appkey, alias)) < 0:
            self._aliases.restore_most_active(appkey, alias, -too_many)

    def _too_many(self, appkey: str, alias: str) -> int:
        """How many more devices of the alias have to be marked; negative: how many marks too many there are."""
        count, dropped = self._aliases.counts(appkey, alias)
        return max(0, count - DEVICES_PER_ALIAS) - dropped


def signs_of_life(fact: SessionFact) -> Iterator[SessionEvent]:
    """The events that show a device active."""
    match fact.WhichOneof("fact"):
        case "batch":
            yield from (event for event in fact.batch.events if event.kind in SIGNS_OF_LIFE)
        case "counts" | None:
            pass
        case unexpected:
            assert_never(unexpected)


def origin(record: Record) -> str:
    """A record's name inside its topic."""
    return f"{record.partition}/{record.offset}"
