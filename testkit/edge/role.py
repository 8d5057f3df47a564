"""A running edge with a real registry, targeting and scheduling behind it, called over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx

import edge.main
import edge.settings
import services.registry.main
import services.registry.settings
import services.scheduling.main
import services.scheduling.settings
import services.targeting.main
import services.targeting.settings
from edge.settings import KEYS
from protos.delivery.v1.delivery_pb2_grpc import (
    add_AliasesServiceServicer_to_server,
    add_ReportsServiceServicer_to_server,
)
from protos.push.v1.push_pb2 import PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, IdentityMode, Platform
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice, SetAlias
from protos.registry.v1.registry_pb2 import (
    CreateAppRequest,
    IdentityChange,
    IdentityKeys,
    IdentityTags,
    UpdateAppRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Position
from protos.scheduling.v1.scheduling_pb2 import TaskCommand
from services.domain.apps import AppDirectory
from services.domain.ids import event_id
from services.domain.master_key import Keys, MasterKey
from services.domain.role import RoleContext
from services.domain.topics import DEVICE_COMMANDS, PUSH_COMMANDS, TASK_COMMANDS, TOPICS, decode, device_key
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.log.topics import partition_of
from services.net.http.server import HttpListener
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Server
from services.process.clock import ManualClock
from services.replica.peers import Peers
from testkit import plain_http
from testkit.edge.owned_registry import OwnedRegistry
from testkit.gateway.scripted_delivery import ScriptedAliases, ScriptedReports
from testkit.services import running_services
from testkit.signing import signed

NOW_MS = 1_790_000_010_000
"""2026-09-21 14:13:30 UTC."""

PARTITIONS = 4
ZONE = "Asia/Shanghai"
BACKENDS: Mapping[str, tuple[Any, Any]] = {
    "registry": (services.registry.settings.RegistrySettings, services.registry.main.build),
    "targeting": (services.targeting.settings.TargetingSettings, services.targeting.main.build),
    "scheduling": (services.scheduling.settings.SchedulingSettings, services.scheduling.main.build),
}


class SwitchedServer(LocalServer):
    """A server in this process that can be away: calls then fail as calls to a role that does not run."""

    @contextmanager
    def away(self) -> Iterator[None]:
        served = dict(self._handlers)
        self._handlers.clear()
        yield
        self._handlers.update(served)


class EdgeInstallation:
    """A running edge: tests create apps and devices in it, send requests to it, and read the log behind it.

    `http`, `android` and `ios` call the v2 and the legacy interfaces. `owned_registry` is in use where the installation
    was made with `has_owner`. `aliases` and `reports` stand for delivery where devices change their aliases, and where
    they acknowledge and report.
    """

    def __init__(
        self,
        log: SqliteLog,
        context: RoleContext,
        clients: Mapping[str, httpx.AsyncClient],
        clock: ManualClock,
        servers: Mapping[str, "SwitchedServer"],
        owned_registry: OwnedRegistry,
        aliases: ScriptedAliases,
        reports: ScriptedReports,
    ) -> None:
        self.aliases = aliases
        self.reports = reports
        self.servers = servers
        self.owned_registry = owned_registry
        self.log = log
        self.context = context
        self.http = clients["v2 interface"]
        self.android = clients["legacy Android interface"]
        self.ios = clients["legacy iOS interface"]
        self.clock = clock
        self.secrets: dict[str, str] = {}

    async def app(self, platform: "Platform.ValueType" = PLATFORM_ANDROID) -> App:
        registry = RegistryServiceStub(self.context.peers.all("registry")[0])
        made = await registry.CreateApp(CreateAppRequest(platform=platform, name="Test", package="org.example.test"))
        self.secrets[made.app.appkey] = made.secret_key
        app: App = made.app
        return app

    async def device(self, app: App, token: str, alias: str | None = None) -> None:
        """Register a device, perhaps with an alias; each is more recently active than earlier ones."""
        self.clock.move(1)
        register = DeviceCommand(register=RegisterDevice(platform=app.platform))
        await self.command(app.appkey, token, register)
        if alias is not None:
            await self.command(app.appkey, token, DeviceCommand(set_alias=SetAlias(alias=alias)))

    async def set_identity(
        self, app: App, mode: "IdentityMode.ValueType", *pems: str, tags: Sequence[str] = ()
    ) -> None:
        """Change how the app's devices prove their aliases and identity tags."""
        registry = RegistryServiceStub(self.context.peers.all("registry")[0])
        change = IdentityChange(mode=mode, keys=IdentityKeys(pems=pems), tags=IdentityTags(tags=tags))
        await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, identity=change))

    async def command(self, appkey: str, token: str, command: DeviceCommand) -> None:
        command.appkey, command.token = appkey, token
        command.meta.CopyFrom(Meta(event_id=event_id(), time_ms=self.clock.now_ms(), writer="test"))
        key = device_key(appkey, token)
        partition = partition_of(key, PARTITIONS)
        new_record = NewRecord(DEVICE_COMMANDS.name, partition, key, command.SerializeToString())
        (offset,) = await self.log.append([new_record])
        await self.context.peers.wait_applied([Position(topic=new_record.topic, partition=partition, offset=offset)])

    async def push(self, body: dict[str, Any], *appkeys: str) -> dict[str, Any]:
        """Sign with the secrets of these apps, send to POST /v2/push, return the answer."""
        return await self.post(signed(body, *(self.secrets[appkey] for appkey in appkeys)))

    async def call(self, method: str, path: str, body: dict[str, Any], *appkeys: str, **headers: str) -> dict[str, Any]:
        """Sign with the secrets of these apps, send to the v2 interface, return the answer."""
        content = signed(body, *(self.secrets[appkey] for appkey in appkeys))
        response = await self.http.request(method, path, content=content, headers=headers)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def post(self, content: bytes, path: str = "/v2/push") -> dict[str, Any]:
        response = await self.http.post(path, content=content)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json;charset=utf-8"
        answer: dict[str, Any] = response.json()
        return answer

    async def sent(self) -> list[SendPush]:
        """Return every push in the log."""
        page = await self.log.select({Partition(PUSH_COMMANDS.name, 0): 0}, 10_000)
        commands: list[PushCommand] = [decode(record) for record in page.records]
        assert [record.key.decode() for record in page.records] == [str(command.send.msgid) for command in commands]
        return [command.send for command in commands]

    async def until_sent(self, count: int) -> list[SendPush]:
        """Return every push in the log once there are `count` of them."""
        reader = await self.log.open({Partition(PUSH_COMMANDS.name, 0): 0})
        try:
            async with asyncio.timeout(60):
                found = 0
                while found < count:
                    found += len(await reader.read())
        finally:
            await reader.close()
        return await self.sent()

    async def tasks(self) -> list[TaskCommand]:
        """Return every task command in the log."""
        starts = {Partition(TASK_COMMANDS.name, number): 0 for number in range(PARTITIONS)}
        return [decode(record) for record in (await self.log.select(starts, 10_000)).records]


@asynccontextmanager
async def edge_installation(
    tmp_path: Path,
    backends: Mapping[str, Any],
    *,
    has_owner: bool = False,
    keys: Keys | None = None,
    **edge_settings: Any,
) -> AsyncIterator[EdgeInstallation]:
    """Run the edge with these roles behind it; calls to other roles fail.

    `has_owner`: the registry's shard has an owner by the log, and callers find it there; see OwnedRegistry.
    `keys`: those of the processes.
    """
    clock = ManualClock(NOW_MS)
    log = SqliteLog(tmp_path / "events.db", TOPICS)
    servers = {name: SwitchedServer() for name in (*BACKENDS, "delivery", "analytics")}
    channels = {name: [server.channel()] for name, server in servers.items()}
    aliases = ScriptedAliases()
    add_AliasesServiceServicer_to_server(aliases, cast(Server, servers["delivery"]))
    reports = ScriptedReports()
    add_ReportsServiceServicer_to_server(reports, cast(Server, servers["delivery"]))
    owned = OwnedRegistry(log, clock, servers["registry"])
    if has_owner:
        channels["registry"] = [owned.channel]
    peers = Peers(channels, TOPICS)
    apps = AppDirectory(log)
    context = RoleContext(log=log, clock=clock, peers=peers, keys=keys or MasterKey(bytes(32)).only(KEYS), apps=apps)
    common = {"data_dir": str(tmp_path), "partitions": PARTITIONS, "timezone": ZONE}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(log.close)
        await stack.enter_async_context(running_services([apps]))
        if has_owner:
            await stack.enter_async_context(owned.known_to_callers())
        for name, (settings, build) in backends.items():
            membership = owned.membership if has_owner and name == "registry" else None
            role = build(settings(**common), replace(context, membership=membership))
            for add in role.servicers:
                add(cast(Server, servers[name]))
            await stack.enter_async_context(running_services(role.services))
        own_settings: dict[str, Any] = {**common, "v2_port": 0, "android_port": 0, "ios_port": 0, **edge_settings}
        own = edge.settings.EdgeSettings(**own_settings)
        services = edge.main.build(own, context).services
        await stack.enter_async_context(running_services(services, stop_at_once=True))
        clients = {}
        for listener in services:
            if isinstance(listener, HttpListener):
                http = plain_http.async_client(base_url=f"http://127.0.0.1:{listener.port}", timeout=20)
                clients[listener.name] = await stack.enter_async_context(http)
        yield EdgeInstallation(log, context, clients, clock, servers, owned, aliases, reports)
