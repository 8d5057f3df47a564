"""Wires the registry: two followers with a store each, their look-ups, and the servicers."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from protos.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.domain.apps import AppDirectory
from services.domain.role import Role, RoleContext
from services.domain.topics import DEVICE_COMMANDS, DEVICES, SESSIONS
from services.registry.lookups import Lookups
from services.registry.projection import AliasRules, DeviceRules, FindApp, KnownApps
from services.registry.revocation_worker import Revoking
from services.registry.server import RegistryServicer
from services.registry.store import ALIASES_DDL, ALIASES_FILE, DEVICES_DDL, DEVICES_FILE, AliasTable, DeviceTable
from services.runtime.log.point_in_time import until_ready
from services.runtime.log.port import Log, Partition
from services.runtime.log.topics import Topic, owned
from services.runtime.process.settings import Settings
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.follower import Follower
from services.runtime.projection.positions import PositionsServicer
from services.runtime.projection.replay import State
from services.runtime.projection.store import SqliteStore

ROLE = "registry"


class RegistrySettings(Settings, frozen=True, kw_only=True):
    """The registry needs no settings of its own."""


SETTINGS = RegistrySettings


class RegistryState:
    """Both stores and what folds into them."""

    def __init__(
        self,
        settings: RegistrySettings,
        directory: Path,
        log: Log,
        find_app: FindApp,
        on_revoked: Callable[[], None] = lambda: None,
    ) -> None:
        self.devices = SqliteStore(directory / DEVICES_FILE, DEVICES_DDL)
        self.device_table = DeviceTable(self.devices)
        self.aliases = SqliteStore(directory / ALIASES_FILE, ALIASES_DDL)
        self._mine = owned(settings.partitions, settings.shard, settings.shards)
        self._all = list(range(settings.partitions))
        self._parked = settings.data / "parked" / f"{ROLE}.jsonl"
        rules = DeviceRules(self.device_table, find_app, settings.partitions, on_revoked, tells_doors=True)
        self.device_follower = self._device_follower(log, rules)
        self.alias_follower = self._alias_follower(settings, log)

    @property
    def followers(self) -> Sequence[Follower]:
        return (self.device_follower, self.alias_follower)

    def digest(self) -> str:
        return hashlib.sha256(f"{self.devices.digest()} {self.aliases.digest()}".encode()).hexdigest()

    def close(self) -> None:
        self.devices.close()
        self.aliases.close()

    def _device_follower(self, log: Log, rules: DeviceRules) -> Follower:
        return Follower(
            ROLE,
            log,
            rules,
            self.devices,
            DeadLetters(self._parked, ROLE),
            folds=_partitions(SESSIONS, self._mine),
            decides=_partitions(DEVICE_COMMANDS, self._mine),
            own=_partitions(DEVICES, self._mine),
        )

    def _alias_follower(self, settings: RegistrySettings, log: Log) -> Follower:
        role = f"{ROLE}-aliases"
        return Follower(
            role,
            log,
            AliasRules(AliasTable(self.aliases), settings.shard, settings.shards),
            self.aliases,
            DeadLetters(self._parked, role),
            folds=[*_partitions(DEVICES, self._all), *_partitions(SESSIONS, self._all)],
            decides=_partitions(DEVICES, self._all),
        )


class Projection:
    """Runs one follower, and closes what belongs to it when it stops."""

    def __init__(self, follower: Follower, before: Callable[[], None], after: Callable[[], None]) -> None:
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


def build(settings: RegistrySettings, context: RoleContext) -> Role:
    """The registry over its state in the settings' directory."""
    apps = KnownApps(context.apps)
    state = RegistryState(settings, settings.state_dir(ROLE), context.log, apps.find, lambda: revoking.wake())
    revoking = Revoking(state.device_follower, state.device_table, context.apps, context.clock)
    lookups = Lookups(state.devices, state.aliases)
    servicer = RegistryServicer(context, lookups, settings.partitions, owns_apps=settings.shard == 0)
    positions = PositionsServicer(*(follower.progress for follower in state.followers))

    def close_devices() -> None:
        lookups.close()
        state.devices.close()

    return Role(
        ROLE,
        services=[
            Projection(state.device_follower, apps.attach, close_devices),
            revoking,
            Projection(state.alias_follower, lambda: None, state.aliases.close),
        ],
        servicers=[
            lambda server: add_RegistryServiceServicer_to_server(servicer, server),
            lambda server: add_PositionsServiceServicer_to_server(positions, server),
        ],
    )


def open_state(settings: RegistrySettings, directory: Path, log: Log) -> State:
    """Both stores in a directory, to be folded forward by a replay."""
    return RegistryState(settings, directory, log, lambda appkey: None)


async def decide_again(settings: RegistrySettings, directory: Path, log: Log) -> None:
    """Decide every command in the log once more and append the devices' records, which the log keeps only the last of.

    The same commands give the same records. The directory is for what is needed meanwhile.
    """
    apps = AppDirectory(log)
    store = SqliteStore(directory / DEVICES_FILE, DEVICES_DDL)
    everything = range(settings.partitions)
    follower = Follower(
        ROLE,
        log,
        DeviceRules(DeviceTable(store), apps.get, settings.partitions),
        store,
        DeadLetters(directory / "parked.jsonl", ROLE),
        folds=(),
        decides=_partitions(DEVICE_COMMANDS, everything),
        own=_partitions(DEVICES, everything),
    )
    try:
        await until_ready(apps.run)
        await until_ready(follower.run)
    finally:
        store.close()


def _partitions(topic: Topic, numbers: Sequence[int]) -> list[Partition]:
    return [Partition(topic.name, number) for number in numbers]
