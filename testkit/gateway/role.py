"""A gateway for tests: real sockets, an embedded log, a real registry, scripted delivery, and a manual clock."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from protos.delivery.v1.delivery_pb2_grpc import (
    add_AliasesServiceServicer_to_server,
    add_DeliveryServiceServicer_to_server,
)
from protos.gateway.v1.sessions_pb2 import ConnectionCounts, SessionEvent
from protos.registry.v1.apps_pb2 import App, AppFact, IdentityMode, Pause, Platform
from protos.registry.v1.devices_pb2 import Device
from protos.registry.v1.registry_pb2 import (
    GetDevicesRequest,
    IdentityChange,
    IdentityKeys,
    IdentityTags,
    QuotasChange,
    UpdateAppRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.domain.apps import AppDirectory
from services.domain.master_key import Keys, MasterKey
from services.domain.role import RoleContext
from services.domain.topics import APPS, SESSIONS, TOPICS, decode
from services.gateway.listener import DeviceListener
from services.gateway.main import ROLE, build
from services.gateway.settings import GatewaySettings
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Server
from services.process.clock import ManualClock
from services.process.runner import Service
from services.registry.main import build as build_registry
from services.registry.settings import RegistrySettings
from services.replica.instances import InstanceDirectory
from services.replica.peers import Peers
from services.replica.positions import AppliedPositions, PositionsServicer
from testkit.gateway.scripted_delivery import BOUND_S, ScriptedAliases, ScriptedDelivery

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

ANDROID = "1000000001"
IOS = "1000000002"
PARTITIONS = 4
NOON_MS = 1_800_000_000_000


async def start_service(service: Service) -> "asyncio.Task[None]":
    """Run a service in a task; return it once the service is ready."""
    ready = asyncio.Event()
    task = asyncio.create_task(service.run(ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set(), task
    return task


async def stop_services(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Cancel the tasks one after the other, the last one first."""
    for task in reversed(tasks):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class RunningGateway:
    """A gateway between `open` and `close`. A second one in the same directory continues with the same log."""

    def __init__(
        self,
        directory: Path,
        settings: GatewaySettings | None = None,
        keys: Keys | None = None,
        instances: InstanceDirectory | None = None,
    ) -> None:
        """`keys`: those of the gateway's process, if they are not those of `keys` of this object.

        `instances`: where the gateway looks up the owners of shards; None: there are no standbys.
        """
        self._instances = instances
        self.settings = settings or GatewaySettings(partitions=PARTITIONS, gateway_port=0)
        self._directory = directory
        self.log = SqliteLog(directory / "log.db", TOPICS)
        self.clock = ManualClock(NOON_MS)
        self.apps = AppDirectory(self.log)
        self.keys = MasterKey(bytes(32))
        self._keys = keys or self.keys.only(ROLE.keys)
        self.delivery = ScriptedDelivery()
        self.aliases = ScriptedAliases()
        self._registry = LocalServer()
        self._tasks: list[asyncio.Task[None]] = []
        self.context: RoleContext
        self._gateway: list[asyncio.Task[None]] = []
        self.port = 0

    async def open(self) -> None:
        if not await self.log.last(Partition(APPS.name, 0)):
            await self.create_app(ANDROID, Platform.PLATFORM_ANDROID)
            await self.create_app(IOS, Platform.PLATFORM_IOS)
        targeting, delivery = LocalServer(), LocalServer()
        add_PositionsServiceServicer_to_server(PositionsServicer(AppliedPositions()), cast(Server, targeting))
        add_DeliveryServiceServicer_to_server(self.delivery, cast(Server, delivery))
        add_AliasesServiceServicer_to_server(self.aliases, cast(Server, delivery))
        servers = {"registry": self._registry, "targeting": targeting, "delivery": delivery}
        peers = Peers({role: [server.channel()] for role, server in servers.items()}, TOPICS, self._instances)
        context = self.context = RoleContext(self.log, self.clock, peers, self._keys, self.apps)
        settings = RegistrySettings(partitions=PARTITIONS, data_dir=str(self._directory))
        registry = build_registry(settings, context)
        for add in registry.servicers:
            add(cast(Server, self._registry))
        self._tasks = [await start_service(service) for service in (self.apps, *registry.services)]
        role = build(self.settings, context)
        self._gateway = [await start_service(service) for service in role.services]
        server = role.services[-1]
        assert isinstance(server, DeviceListener)
        self.port = server.port

    async def device(self, token: str) -> Device:
        """Return the registry's record of an Android device."""
        request = GetDevicesRequest(appkey=ANDROID, tokens=[token])
        return (await self.registry.GetDevices(request)).devices[0]

    @property
    def registry(self) -> "RegistryServiceAsyncStub":
        return RegistryServiceStub(self._registry.channel())

    async def create_app(self, appkey: str, platform: "Platform.ValueType", pause: Pause | None = None) -> None:
        app = App(appkey=appkey, platform=platform, pause=pause)
        fact = AppFact(meta=Meta(epoch=self.apps.epoch), app=app)
        await self.log.append([NewRecord(APPS.name, 0, appkey.encode(), fact.SerializeToString())])

    async def set_pause(self, appkey: str, pause: Pause | None) -> None:
        """Pause or resume an Android app; return when the gateway knows it."""
        await self.create_app(appkey, Platform.PLATFORM_ANDROID, pause)
        await self.apps.refresh()

    async def limit_devices(self, appkey: str, quota: int) -> None:
        change = QuotasChange(devices=quota)
        await self.registry.UpdateApp(UpdateAppRequest(appkey=appkey, quotas=change))

    async def set_identity(self, mode: "IdentityMode.ValueType", *pems: str, tags: Sequence[str] = ()) -> None:
        """Change how the Android app's devices prove their aliases and identity tags."""
        change = IdentityChange(mode=mode, keys=IdentityKeys(pems=pems), tags=IdentityTags(tags=tags))
        await self.registry.UpdateApp(UpdateAppRequest(appkey=ANDROID, identity=change))

    async def stop(self) -> None:
        """Stop the gateway alone; the log, the registry and delivery go on."""
        await stop_services(self._gateway)
        self._gateway = []

    async def close(self) -> None:
        await self.stop()
        await stop_services(self._tasks)
        await self.log.close()

    async def session_facts(self, enough: int = 0) -> tuple[list[SessionEvent], list[ConnectionCounts]]:
        """Return all session facts of the log, once they are `enough` events and counts together."""
        reader = await self.log.open({Partition(SESSIONS.name, number): 0 for number in range(PARTITIONS)})
        events: list[SessionEvent] = []
        counts: list[ConnectionCounts] = []
        async with asyncio.timeout(BOUND_S):
            while len(events) + len(counts) < enough:
                for record in await reader.read():
                    fact = decode(record)
                    events += fact.batch.events
                    counts += [fact.counts] if fact.HasField("counts") else []
        await reader.close()
        return events, counts
