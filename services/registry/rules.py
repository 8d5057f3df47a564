"""The rules of the registry's two followers: what they fold, and what follows from each record."""

from collections.abc import Callable, Sequence

from protos.registry.v1.apps_pb2 import App, AppFact, Revocations
from protos.registry.v1.devices_pb2 import ClearAlias, Device, DeviceCommand, DeviceFact
from services.domain.revocations import revocations_key
from services.domain.topics import APPS, DEVICE_COMMANDS, DEVICES, device_key
from services.registry.decide import Place, decide
from services.registry.decide_revocations import removed, revoke_all, revoke_one
from services.registry.state import AliasState, DeviceState, origin
from services.registry.store import AliasTable, DeviceTable
from services.runtime.log.port import Record
from services.runtime.log.topics import partition_of
from services.runtime.projection.follower import Fact

_REMEMBERED_COMMANDS = 50_000
_OVERDUE_MS = 60_000

FindApp = Callable[[str], App | None]


class DeviceRules:
    """Commands become device records. A command that its writer sent twice counts once, unless a restart is between.

    Revoked keys are written twice: in `devices`, where this state is folded from, and for the doors in `apps`. What a
    crash kept from the doors they are told at the next start (`RevocationWorker`).
    """

    def __init__(
        self,
        devices: DeviceTable,
        find_app: FindApp,
        partitions: int,
        on_revocations: Callable[[], None] = lambda: None,
        *,
        publishes_revocations: bool = False,
    ) -> None:
        """`on_revocations` is called in the follower's thread when revocations were folded."""
        self._devices = devices
        self._find_app = find_app
        self._partitions = partitions
        self._publishes_revocations = publishes_revocations
        self._seen: dict[bytes, None] = {}
        self.apply = DeviceState(devices, on_revocations).apply

    def decide(self, record: Record, command: DeviceCommand) -> Sequence[Fact]:
        """The records that follow. ValueError: the command lies in another device's partition."""
        kind, partition = command.WhichOneof("command"), record.partition
        key = device_key(command.appkey, command.token)
        if kind != "revoke_all_keys" and partition_of(key, self._partitions) != partition:
            raise ValueError("the command lies in a partition that is not its device's")
        if self._repeated(command.meta.event_id):
            return ()
        revoked = self._devices.revoked(command.appkey, partition)
        if kind == "revoke_all_keys":
            next_number = self._devices.next_number(command.appkey, partition)
            return self._revoked(revoke_all(command, partition, revoked, next_number), None)
        known = self._devices.find(command.appkey, command.token)
        if kind == "revoke_key":
            return self._revoked(revoke_one(command, known, revoked), known)
        return self._changed(command, partition, known, is_revoked=known is not None and known.number in revoked)

    def _revoked(self, revocations: Revocations | None, device: Device | None) -> Sequence[Fact]:
        """The partition's record of revoked keys, here and for the doors, and the end of the one device it is about."""
        if revocations is None:
            return ()
        own = DeviceFact(revocations=revocations)
        facts = [Fact(DEVICES, revocations.partition, revocations.appkey.encode(), own)]
        if self._publishes_revocations:
            facts.append(published(revocations))
        if device is not None and not device.removed_ms:
            facts.append(device_fact(removed(device, revocations)))
        return facts

    def _changed(
        self, command: DeviceCommand, partition: int, known: Device | None, *, is_revoked: bool
    ) -> Sequence[Fact]:
        is_new = known is None or is_revoked
        number = self._devices.next_number(command.appkey, partition) if is_new else 0
        app = self._find_app(command.appkey)
        device = decide(command, known, app, Place(partition, number), is_revoked=is_revoked)
        return () if device is None else (device_fact(device),)

    def _repeated(self, event_id: bytes) -> bool:
        if event_id in self._seen:
            return True
        if event_id:
            self._seen[event_id] = None
        if len(self._seen) > _REMEMBERED_COMMANDS:
            del self._seen[next(iter(self._seen))]
        return False


def device_fact(device: Device) -> Fact:
    """The device's next record."""
    key = device_key(device.appkey, device.token)
    return Fact(DEVICES, device.partition, key, DeviceFact(device=device))


def published(revocations: Revocations) -> Fact:
    """What the doors are told."""
    return Fact(APPS, 0, revocations_key(revocations), AppFact(revocations=revocations))


class AliasRules:
    """Device records become the alias index; an alias with too many devices becomes a command to clear one."""

    def __init__(self, aliases: AliasTable, shard: int, shards: int) -> None:
        self._aliases = aliases
        self._state = AliasState(aliases, shard, shards)
        self.apply = self._state.apply

    def decide(self, record: Record, fact: DeviceFact) -> Sequence[Fact]:
        """A ClearAlias for each device that this record dropped, and again where one came to nothing for a minute."""
        alias = self._state.alias_of(fact.device)
        if alias is None:
            return ()
        appkey, overdue_ms = fact.device.appkey, fact.meta.time_ms - _OVERDUE_MS
        return [
            _clear_alias(Device(appkey=appkey, token=member.token, partition=member.partition), alias)
            for member in self._aliases.dropped(appkey, alias, origin(record), overdue_ms)
        ]


def _clear_alias(device: Device, alias: str) -> Fact:
    command = DeviceCommand(appkey=device.appkey, token=device.token, clear_alias=ClearAlias(only_alias=alias))
    return Fact(DEVICE_COMMANDS, device.partition, device_key(device.appkey, device.token), command)
