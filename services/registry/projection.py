"""The registry's projection, in SQLite: a store of devices, and one of the indexes of aliases and of addresses.

Each is folded by a follower of its own.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from services.domain.apps import AppDirectory
from services.domain.sealed_log import sealer_of
from services.domain.settings import Settings
from services.domain.topics import DEVICE_COMMANDS, DEVICES, ERASURES_PARTITION, SESSIONS
from services.log.identity import check_log_identity
from services.log.point_in_time import until_ready
from services.log.port import Log, Partition
from services.log.topics import Topic, owned
from services.process.clock import Clock, SystemClock
from services.registry.address_index import ADDRESSES_DDL, AddressRules, AddressTable
from services.registry.given_numbers import load_given
from services.registry.rules import AliasRules, DeviceRules, FindApp, IndexRules, ValidDevices
from services.registry.settings import ROLE_NAME, RegistrySettings
from services.registry.store import ALIASES_DDL, ALIASES_FILE, DEVICES_DDL, DEVICES_FILE, AliasTable, DeviceTable
from services.replica.dead_letters import DeadLetters, RefusedKeys
from services.replica.epochs import Epochs
from services.replica.fencing import Fencing
from services.replica.follower import Follower
from services.replica.sqlite_store import SqliteStore
from services.replica.tenure import OwnerElection


class RegistryProjection:
    """Both stores and their followers.

    The device follower decides `device-commands` of the owned partitions. The alias follower reads the devices and
    sessions of all partitions, because the devices of one alias or address may be in any of them. Only an owner
    commands to clear one: `is_owner` is called in the follower's thread.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        directory: Path,
        log: Log,
        find_app: FindApp,
        on_revocations: Callable[[], None] = lambda: None,
        on_returns: Callable[[], None] = lambda: None,
        *,
        clock: Clock | None = None,
        election: OwnerElection | None = None,
        apps_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        """`apps_epoch` returns the highest epoch in the topic of apps. New epochs exceed it: the log may have lost the
        end of `devices`, with the epoch that the latest owner announced in both topics, and not the end of `apps`.
        """
        check_log_identity(directory, log, ROLE_NAME)
        self.devices = SqliteStore(directory / DEVICES_FILE, DEVICES_DDL)
        self.device_table = DeviceTable(self.devices)
        self.aliases = SqliteStore(directory / ALIASES_FILE, ALIASES_DDL + ADDRESSES_DDL)
        clock = clock or SystemClock()
        self._election = election
        self._own = _partitions(DEVICES, owned(settings.partitions, settings.shard, settings.shards))
        self.is_owner: Callable[[], bool] = lambda: True
        self._dead_letters = settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl"
        rules = DeviceRules(
            self.device_table,
            find_app,
            settings.partitions,
            on_revocations,
            on_returns,
            writes_other_topics=True,
            given=load_given(directory),
            sealer=lambda: sealer_of(log),
        )
        self.attribute_changes = rules.changes
        epochs = Epochs(self.devices.epochs(), self.devices.set_epoch)
        self.fencing = Fencing(ROLE_NAME, log.topics, epochs, clock, floor=lambda partition: apps_epoch())
        refused = RefusedKeys(self.devices, ValidDevices(self.device_table, clock).fact)
        self.device_follower = self._device_follower(settings, log, rules, refused)
        self.alias_table, self.address_table = AliasTable(self.aliases), AddressTable(self.aliases)
        self.address_rules = AddressRules(self.address_table, settings.shard, settings.shards, lambda: self.is_owner())
        self.partitions = _partitions(DEVICES, range(settings.partitions))
        self.alias_follower = self._alias_follower(settings, log)

    @property
    def followers(self) -> Sequence[Follower]:
        return (self.device_follower, self.alias_follower)

    def epoch(self) -> int:
        """Return the epoch under which this process owns its first partition of devices."""
        return self.fencing.epoch(self._own[0])

    def digest(self) -> str:
        return hashlib.sha256(f"{self.devices.digest()} {self.aliases.digest()}".encode()).hexdigest()

    def save(self) -> None:
        """Do nothing: each batch of facts has been committed."""

    def close(self) -> None:
        self.devices.close()
        self.aliases.close()

    def _device_follower(
        self, settings: RegistrySettings, log: Log, rules: DeviceRules, refused: RefusedKeys
    ) -> Follower:
        numbers = owned(settings.partitions, settings.shard, settings.shards)
        return Follower(
            ROLE_NAME,
            log,
            rules,
            self.devices,
            DeadLetters(self._dead_letters, ROLE_NAME),
            applies=[*_partitions(SESSIONS, numbers), ERASURES_PARTITION],
            decides=_partitions(DEVICE_COMMANDS, numbers),
            own=self._own,
            fencing=self.fencing,
            refused=refused,
            election=self._election,
        )

    def _alias_follower(self, settings: RegistrySettings, log: Log) -> Follower:
        name, numbers = f"{ROLE_NAME}-aliases", range(settings.partitions)
        shard, shards = settings.shard, settings.shards
        return Follower(
            name,
            log,
            IndexRules(
                AliasRules(self.alias_table, shard, shards, lambda: self.is_owner()),
                self.address_rules,
            ),
            self.aliases,
            DeadLetters(self._dead_letters, name),
            applies=[*_partitions(DEVICES, numbers), *_partitions(SESSIONS, numbers)],
            decides=_partitions(DEVICES, numbers),
            epochs=Epochs(self.aliases.epochs(), self.aliases.set_epoch),
        )


class FollowerService:
    """Runs one follower as a service, with a callback before it starts and one after it stopped."""

    def __init__(
        self, follower: Follower, *, before: Callable[[], None] = lambda: None, after: Callable[[], None]
    ) -> None:
        self.name = follower.name
        self._follower = follower
        self._before = before
        self._after = after

    async def run(self, ready: asyncio.Event) -> None:
        self._before()
        try:
            await self._follower.run(ready)
        finally:
            self._after()


async def decide_device_commands(settings: Settings, directory: Path, log: Log) -> None:
    """Decide every command of `device-commands` once more and append the resulting device records to the log.

    The same commands give the same records. So a log that lost the earlier records of a device to compaction gets them
    back. The directory is for scratch files.
    """
    apps = AppDirectory(log)
    store = SqliteStore(directory / DEVICES_FILE, DEVICES_DDL)
    numbers = range(settings.partitions)
    follower = Follower(
        ROLE_NAME,
        log,
        DeviceRules(DeviceTable(store), apps.get, settings.partitions),
        store,
        DeadLetters(directory / "dead-letters.jsonl", ROLE_NAME),
        applies=(),
        decides=_partitions(DEVICE_COMMANDS, numbers),
        own=_partitions(DEVICES, numbers),
    )
    try:
        await until_ready(apps.run)
        await until_ready(follower.run)
    finally:
        store.close()


def _partitions(topic: Topic, numbers: Sequence[int]) -> list[Partition]:
    return [Partition(topic.name, number) for number in numbers]
