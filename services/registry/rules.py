"""The rules of the registry's two followers: how records change the state, and which facts follow from them."""

from collections.abc import Callable, Sequence
from types import MappingProxyType

from protos.gateway.v1.sessions_pb2 import SessionFact
from protos.registry.v1.apps_pb2 import App, AppFact, Revocations
from protos.registry.v1.devices_pb2 import AliasTaken, ClearAddress, ClearAlias, Device, DeviceCommand, DeviceFact
from services.domain.addresses import channel_name
from services.domain.ids import RecordStamp
from services.domain.revocations import RevokedKeys, revocations_key
from services.domain.sealing import Sealer, is_name
from services.domain.topics import APPS, DEVICE_COMMANDS, DEVICES, device_key
from services.log.port import Partition, Record
from services.log.topics import partition_of
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import ADDRESSES_LOST, ALIASES_LOST, LOST_DEVICES
from services.registry.address_index import AddressRules
from services.registry.decide import (
    FreeNumber,
    decide,
    proves_lost_number,
    removed,
    reserve,
    reserve_lost,
    revoke_all,
    revoke_one,
)
from services.registry.given_numbers import NextNumbers
from services.registry.state import AliasState, AttributeChanges, DeviceState, change_fact, record_id
from services.registry.store import AliasTable, DeviceTable, DroppedDevice
from services.replica.store import Fact

_DEDUPE_WINDOW = 50_000
_OVERDUE_MS = 60_000
_SKIPPED_MS = 10 * _OVERDUE_MS
_OF_A_PARTITION = ("revoke_all_keys", "reserve_numbers")
"""Commands about all devices of an app in a partition."""

FindApp = Callable[[str], App | None]


class DeviceRules:
    """Decides device commands. A repeated command counts once, unless the registry restarted in between.

    Revocations are written twice: to `devices`, from which this state is folded, and to `apps`, which the edge and the
    gateway read. If a crash prevented the second, `RevocationWorker` writes it at the next start.
    """

    def __init__(
        self,
        devices: DeviceTable,
        find_app: FindApp,
        partitions: int,
        on_revocations: Callable[[], None] = lambda: None,
        on_returns: Callable[[], None] = lambda: None,
        *,
        writes_other_topics: bool = False,
        given: NextNumbers = MappingProxyType({}),
        sealer: Callable[[], Sealer | None] = lambda: None,
    ) -> None:
        """`writes_other_topics`: False where commands are decided once more; other topics have their facts. `given`:
        numbers below these were given out before the log went back.

        Both functions are called in the follower's thread: `on_revocations` whenever revocations were applied,
        `on_returns` whenever retired devices have shown life.
        """
        self._devices = devices
        self._find_app = find_app
        self._partitions = partitions
        self._given = given
        self._writes_other_topics = writes_other_topics
        self._decided_ids: dict[bytes, tuple[int, int]] = {}
        self._apps_with_lost_devices: set[str] = set()
        self.changes = AttributeChanges(devices.changes)
        self.apply = DeviceState(devices, self.changes, on_revocations, on_returns, sealer).apply

    def decide(self, record: Record, command: DeviceCommand) -> Sequence[Fact]:
        """Return the facts that follow, after changes of attributes that the log may lack.

        ValueError: the command is not in its device's partition, which is not known where its token's key is destroyed.
        """
        interrupted = self.changes.unwritten(record.partition) if self._writes_other_topics else ()
        return [*interrupted, *self._decided(record, command)]

    def _decided(self, record: Record, command: DeviceCommand) -> Sequence[Fact]:
        kind, partition = command.WhichOneof("command"), record.partition
        key = device_key(command.appkey, command.token)
        is_checked = kind not in _OF_A_PARTITION and not is_name(command.token)
        if is_checked and partition_of(key, self._partitions) != partition:
            raise ValueError("the command is not in its device's partition")
        if kind == "begin_session" and not self._devices.has_silent(command.appkey, partition):
            return ()
        if self._is_repeated(command.meta.event_id, (partition, record.offset)):
            return ()
        revoked = self._devices.revoked(command.appkey, partition)
        if kind in _OF_A_PARTITION:
            choose = revoke_all if kind == "revoke_all_keys" else reserve
            free = self._free_number(command.appkey, partition, revoked)
            return self._revocation_facts(choose(command, partition, revoked, free.number), None)
        known = self._devices.find(command.appkey, command.token)
        if kind == "revoke_key":
            return self._revocation_facts(revoke_one(command, known, revoked), known)
        return self._device_facts(command, record, known, revoked)

    def _revocation_facts(self, revocations: Revocations | None, device: Device | None) -> Sequence[Fact]:
        """Return the partition's revocation record for `devices` and `apps`, and the removal of the device, if any."""
        if revocations is None:
            return ()
        own = DeviceFact(revocations=revocations)
        facts = [Fact(DEVICES, revocations.partition, revocations.appkey.encode(), own)]
        if self._writes_other_topics:
            facts.append(published_revocations(revocations))
        if device is not None and not device.removed_ms:
            facts.append(device_fact(removed(device, revocations)))
        return facts

    def _device_facts(
        self, command: DeviceCommand, record: Record, known: Device | None, revoked: RevokedKeys
    ) -> Sequence[Fact]:
        partition, offset = record.partition, record.offset
        is_revoked = known is not None and known.number in revoked
        may_need_number = command.WhichOneof("command") == "register"
        free = self._free_number(command.appkey, partition, revoked) if may_need_number else FreeNumber(partition, 0)
        reserving: Sequence[Fact] = ()
        if known is None and proves_lost_number(command) and self._find_app(command.appkey) is not None:
            LOST_DEVICES.inc()
            reserved = reserve_lost(command, partition, revoked, free.number)
            self._warn_of_lost_tail(command.appkey, reserved)
            if reserved is not None:
                reserving = self._revocation_facts(reserved, None)
                free = FreeNumber(partition, RevokedKeys.of(reserved).end)
        device = decide(command, known, self._find_app(command.appkey), free, is_revoked=is_revoked, offset=offset)
        if device is None:
            return reserving
        if device.HasField("alias_lost") and not (known and known.HasField("alias_lost")):
            ALIASES_LOST.labels("proven" if device.alias_lost.was_proven else "unproven").inc()
        _count_lost_address(command.clear_address)
        if self._writes_other_topics and device.attributes_revision == offset + 1:
            return *reserving, device_fact(device), change_fact(device, command.meta.time_ms)
        return *reserving, device_fact(device)

    def _warn_of_lost_tail(self, appkey: str, reserved: Revocations | None) -> None:
        """Tell the operator once for each app, and again whenever numbers are reserved."""
        if reserved is None and appkey in self._apps_with_lost_devices:
            return
        self._apps_with_lost_devices.add(appkey)
        logger.error(
            "the event log has gone back: a device holds a valid key, but the log does not know its token. It is"
            " registered anew, and the device numbers that the log may have lost are reserved. What else was"
            " acknowledged since is lost too: see docs/operators/backup.md, A log that went back",
            appkey=appkey,
            reserved=reserved is not None,
        )

    def _free_number(self, appkey: str, partition: int, revoked: RevokedKeys) -> FreeNumber:
        """Return the number after all numbers that devices have or had, or that were reserved or revoked."""
        known = max(self._devices.next_number(appkey, partition), revoked.end)
        return FreeNumber(partition, max(known, self._given.get((appkey, partition), 0)))

    def _is_repeated(self, event_id: bytes, position: tuple[int, int]) -> bool:
        """Return whether another record with this id was decided.

        The same record may be decided again, after another process has owned the partition for a while.
        """
        if event_id in self._decided_ids:
            return self._decided_ids[event_id] != position
        if event_id:
            self._decided_ids[event_id] = position
        if len(self._decided_ids) > _DEDUPE_WINDOW:
            del self._decided_ids[next(iter(self._decided_ids))]
        return False


def device_fact(device: Device) -> Fact:
    """Return the fact of the device's next record."""
    key = device_key(device.appkey, device.token)
    return Fact(DEVICES, device.partition, key, DeviceFact(device=device))


def published_revocations(revocations: Revocations) -> Fact:
    """Return the fact in topic `apps` by which the edge and the gateway refuse the keys."""
    return Fact(APPS, 0, revocations_key(revocations), AppFact(revocations=revocations))


class ValidDevices:
    """The present records of topic `devices` by key, to be written again after a former owner's."""

    def __init__(self, devices: DeviceTable, clock: Clock) -> None:
        self._devices = devices
        self._clock = clock
        self._stamp = RecordStamp("registry")

    def fact(self, partition: Partition, key: bytes) -> Fact | None:
        """Return a fact with the present state of the key's record; None if there is no such record."""
        appkey, separator, token = key.decode().partition("/")
        if not separator:
            found = self._devices.revocations_of(appkey, partition.number)
            fact = Fact(DEVICES, partition.number, key, DeviceFact(revocations=found)) if found else None
        else:
            device = self._devices.find(appkey, token)
            fact = device_fact(device) if device else None
        if fact:
            self._stamp.complete(fact.message.meta, self._clock.now_ms())
        return fact


class AliasRules:
    """Maintains the alias index, and commands ClearAlias for the surplus devices of an alias."""

    def __init__(
        self, aliases: AliasTable, shard: int, shards: int, is_owner: Callable[[], bool] = lambda: True
    ) -> None:
        self._aliases = aliases
        self._is_owner = is_owner
        self._skipped: dict[tuple[str, str], int] = {}
        self._state = AliasState(aliases, shard, shards)
        self.apply = self._state.apply

    def decide(self, record: Record, fact: DeviceFact) -> Sequence[Fact]:
        """Return a ClearAlias for each device that this record marked as dropped, or that has been marked for a minute.

        A standby returns none, and notes the aliases that it skips. Once it is the owner, it decides the noted ones
        that a former owner's commands have not cleared within a minute.
        """
        alias = self._state.alias_of(fact.device)
        if alias is None:
            return ()
        appkey, now_ms = fact.device.appkey, fact.meta.time_ms
        if not self._is_owner():
            self._skip(appkey, alias, record_id(record), now_ms)
            return ()
        overdue = [key for key, time_ms in self._skipped.items() if time_ms <= now_ms - _OVERDUE_MS]
        found = [each for key in overdue if self._skipped.pop(key) for each in self._surplus(*key, None, "", now_ms)]
        return found + self._surplus(appkey, alias, fact.device, record_id(record), now_ms)

    def _surplus(self, appkey: str, alias: str, by: Device | None, record: str, now_ms: int) -> list[Fact]:
        """Return the commands that clear the alias of its dropped devices; `record`: the id of the record of `by`."""
        return [
            _clear_alias(appkey, alias, dropped, by if dropped.dropped_by == record else None)
            for dropped in self._aliases.dropped(appkey, alias, record, now_ms - _OVERDUE_MS)
        ]

    def _skip(self, appkey: str, alias: str, by: str, now_ms: int) -> None:
        if self._aliases.dropped(appkey, alias, by, now_ms - _OVERDUE_MS):
            self._skipped[appkey, alias] = now_ms
            for key in [key for key, time_ms in self._skipped.items() if time_ms < now_ms - _SKIPPED_MS]:
                del self._skipped[key]


def _clear_alias(appkey: str, alias: str, dropped: DroppedDevice, by: Device | None) -> Fact:
    """Return the command that takes the alias from a device; one that proves it meanwhile keeps it."""
    taken = AliasTaken()
    if by is not None and by.token != dropped.token:
        taken = AliasTaken(token=by.token, proven=by.alias_proven)
    clear = ClearAlias(only_alias=alias, only_unproven=not dropped.is_proven, taken=taken)
    command = DeviceCommand(appkey=appkey, token=dropped.token, clear_alias=clear)
    return Fact(DEVICE_COMMANDS, dropped.partition, device_key(appkey, dropped.token), command)


def _count_lost_address(clear: ClearAddress) -> None:
    """Count an address that a device has lost by this, unless its app cleared it; an unset command counts nothing."""
    if clear.dead_reason or clear.to_token:
        ADDRESSES_LOST.labels(channel_name(clear.channel), "dead" if clear.dead_reason else "moved").inc()


class IndexRules:
    """The rules of the follower that maintains the indexes of aliases and of addresses."""

    def __init__(self, aliases: AliasRules, addresses: AddressRules) -> None:
        self._aliases = aliases
        self._addresses = addresses

    def apply(self, record: Record, message: DeviceFact | SessionFact) -> None:
        self._aliases.apply(record, message)
        self._addresses.apply(record, message)

    def decide(self, record: Record, fact: DeviceFact) -> Sequence[Fact]:
        return [*self._aliases.decide(record, fact), *self._addresses.decide(record, fact)]
