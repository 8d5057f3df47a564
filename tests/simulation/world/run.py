"""One simulated world from its start to its checks: load with faults, then settling, then all checks."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import edge.main
import services.gateway.main
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.registry_pb2 import CreateAppRequest, CreateAppResponse
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.channel_credentials.webpush import public_key_of
from services.domain.role import RoleDefinition
from services.domain.topics import TOPICS
from services.errors import CarillonError
from testkit.installation.app_server import AppCredentials
from tests.simulation.kernel.clock import START_MS
from tests.simulation.kernel.faults import Fault, latest_end_s, needs_archive
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import Installation, process_name, standby_name
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.network.channels import Network
from tests.simulation.kernel.world import World
from tests.simulation.model.acknowledgements import acknowledged_and_sent
from tests.simulation.model.deliveries import concluded_twice, expired_and_sent
from tests.simulation.model.hand_overs import HandOverLog
from tests.simulation.model.lateness import late
from tests.simulation.model.owner_changes import OwnerChanges
from tests.simulation.model.rival_owners import RivalOwners
from tests.simulation.model.smoothness import FinishedCall, noticed
from tests.simulation.world.analytics.role import SimulatedAnalytics
from tests.simulation.world.apple import IosApp, SimulatedApple, apns_settings
from tests.simulation.world.browsers import GRACE_S, SimulatedPushService
from tests.simulation.world.clients import IMPATIENT_S, PATIENT_S, SimulatedGateways, SimulatedInterface
from tests.simulation.world.errors import NotSettledError, in_time, unexpected
from tests.simulation.world.faults import MustKnow, WorldFaults
from tests.simulation.world.listeners import edge_listeners, gateway_listeners
from tests.simulation.world.operator import Operator, sent_while_paused
from tests.simulation.world.plan import Plan
from tests.simulation.world.quota import QuotaUser
from tests.simulation.world.read_back_client import ReadBackClient
from tests.simulation.world.seeds.faults import faults_of
from tests.simulation.world.seeds.plans import plan_of
from tests.simulation.world.stateful_roles import STATEFUL_ROLES
from tests.simulation.world.timed_history import TimedHistory
from tests.soak.analytics_checks import received_violations
from tests.soak.android_device import AndroidDevice
from tests.soak.android_devices import AndroidDevices
from tests.soak.checks import Observations, Violation, violations
from tests.soak.ledger import Ledger
from tests.soak.pushes import PushGenerator
from tests.soak.senders import Senders
from tests.soak.settled_checks import LIVE_REPLAYS, SettledChecks

_LOG_S, _NETWORK_S = 0.001, 0.001
_RETRY_S, _END_S, _NEVER_MS = 0.5, 1800.0, 2**62
_READERS_DEVICE = 1_000_000
_APP = CreateAppRequest(platform=PLATFORM_ANDROID, name="Simulated", package="org.example.simulated")


class InstallationWorld:
    """The kind of world that runs a whole installation with its clients (see running.Kind).

    `plan` None: the one that the seed chooses.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self._plan = plan

    def faults(self, seed: int) -> list[Fault]:
        return faults_of(seed)

    async def run(self, world: World, faults: Sequence[Fault]) -> list[str]:
        plan = self._plan or plan_of(world.seed)
        try:
            with in_time("the checks do not end"):
                async with asyncio.timeout(max(plan.load_s, latest_end_s(faults)) + plan.settle_s + _END_S):
                    found = await Simulation(world, plan, faults).run()
        except NotSettledError as error:
            return [f"stuck: {error}, up to the time limit"]
        return [f"{each.rule}: {each.text} {list(each.msgids)}" for each in found]


class Simulation:
    """Runs one installation in a world with its clients, then all checks."""

    def __init__(self, world: World, plan: Plan, faults: Sequence[Fault]) -> None:
        self._world = world
        self._plan = plan
        self._faults = faults
        self._rivals = RivalOwners(world.note_stored, world.loop.time, lambda: self._broker)
        self._hand_overs = HandOverLog(self._rivals.note)
        note = self._hand_overs.note if plan.has_browsers else self._rivals.note
        self._delivery_owners = OwnerChanges("delivery", note, self._now_ms)
        behaviour = Behaviour(world.random("log"), plan.log_slowness * _LOG_S)
        self._broker = Broker(TOPICS, plan.partitions, behaviour, self._delivery_owners.note, self._now_ms)
        self._network = Network(world, Latency(world.random("network delays"), plan.network_slowness * _NETWORK_S))
        shards = {**plan.processes, "analytics": 1}
        self._installation = Installation(world, self._broker, self._network, shards)
        self._installation.has_owners, self._installation.has_archive = plan.has_owners, needs_archive(faults)
        self._edges, self._gateways = edge_listeners(), gateway_listeners(world.random("gateways"))
        self._machines: dict[str, RoleHost] = {}
        self._running: list[asyncio.Task[None]] = []
        self._ledger = Ledger(self._record, self._now_ms)
        self._calm_ms: list[tuple[int, int]] = [(0, _NEVER_MS)] if plan.is_smooth or not faults else []
        self._calls: list[FinishedCall] | None = [] if plan.is_smooth else None
        self._log = self._installation.log()
        self._registry = RegistryServiceStub(self._installation.client_peers().all("registry")[0])
        self._internet_s = plan.internet_s(world.random("internet"))
        self._apple = SimulatedApple(world, self._ledger, self._internet_s) if plan.has_ios else None
        self._push_service = SimulatedPushService(world, self._ledger, self._internet_s) if plan.has_browsers else None
        self._analytics = SimulatedAnalytics(world, plan) if "analytics" in plan.processes else None
        self._hosts = self._wanted_hosts()

    async def run(self) -> list[Violation]:
        """Run the world to its end; return the broken rules."""
        following = [asyncio.create_task(self._installation.follow_owners())] if self._plan.has_owners else []
        await self._ready()
        app, ios = await self._app(_APP), await self._ios_app()
        devices, senders, pushes, gateways = self._clients(app, ios)
        if self._push_service is not None:
            await self._open_push_service(self._push_service, app, devices)
        await devices.begin(self._plan.devices, self._plan.steady)
        reader = await self._reader(app, gateways)
        operator = Operator(self._registry, app, [pushes, reader], gateways, self._ledger)
        store = self._analytics.store if self._analytics else None
        faults = WorldFaults(
            self._installation, self._hosts, gateways, operator, self._reshard, self._apple, self._push_service, store
        )
        await self._load(senders, reader, faults, devices, ios.tokens if ios else [])
        await operator.finish(self._interface("v2"))
        if ios:  # a token whose removal could not be written is refused again
            await senders.send(pushes.ios_broadcast())
        history = TimedHistory(self._broker, self._log)
        observed = Observations(self._ledger, history, {**devices.clients(), **(ios.clients() if ios else {})})
        checks = SettledChecks(observed, devices, senders, pushes, self._plan.settle_s)
        found = await self._checked(checks, reader)
        if ios:
            found += await ios.checked(observed, history.reasons, self._interface("v2"))
        found += [*violations(observed), *received_violations(observed), *sent_while_paused(observed, operator.pauses)]
        found += self._hand_overs.found(observed)
        found += [*concluded_twice(observed), *expired_and_sent(observed, self._faults), *noticed(self._calls or [])]
        must_know = MustKnow(self._calm_ms, self._faults, self._delivery_owners.times_ms)
        found += acknowledged_and_sent(gateways.frames, must_know)
        found += late(observed, self._calm_ms, self._plan.lateness)
        if self._analytics and self._plan.asks_real_store:
            await devices.log_in()
        await devices.close()
        found += await self._analytics.unfinished(self._installation) if self._analytics else []
        found += await self._stopped()
        if self._analytics:
            (host,) = self._of("analytics")
            found += await self._analytics.checked(host, self._log, self._installation, observed)
        await asyncio.gather(*self._running)
        for task in following:
            task.cancel()
        rivals = self._rivals.found(faults.injected, self._plan.log_slowness, faults.healed_s)
        found += [Violation("owners", each) for each in rivals]
        errors = unexpected(self._world.errors, self._faults, self._calm_ms[-1][0], self._plan.is_slow)
        return found + [Violation("error", f"{each.process}: {each.text} {each.details}") for each in errors]

    def _wanted_hosts(self) -> list[RoleHost]:
        """Return the hosts of all instances, and start those that are new."""
        return [self._host(role, shard, name) for role in self._plan.processes for shard, name in self._names(role)]

    def _names(self, role: str) -> Iterator[tuple[int, str]]:
        """Yield the shards of a role with the names of their processes."""
        for shard in range(self._installation.shards[role]):
            yield shard, process_name(role, shard)
            if self._plan.has_standby(role):
                yield shard, standby_name(role, shard)

    def _host(self, role: str, shard: int, name: str) -> RoleHost:
        if name not in self._machines:
            definitions: dict[str, RoleDefinition[Any]] = {
                **STATEFUL_ROLES,
                "gateway": self._gateways.definition(services.gateway.main.ROLE),
                "edge": self._edges.definition(edge.main.ROLE),
                **({"analytics": self._analytics.definition()} if self._analytics else {}),
            }
            apns = apns_settings(self._apple, self._world.directory) if role == "delivery" else {}
            graces = {"channel_grace_s": GRACE_S} if role == "delivery" and self._plan.has_browsers else {}
            settings = {"snapshot_s": self._plan.snapshot_s, **apns, **graces}
            host = RoleHost(self._installation, definitions[role], shard, name, **settings)
            self._machines[name] = host
            self._running.append(asyncio.create_task(host.run()))
        return self._machines[name]

    def _reshard(self, role: str, count: int) -> list[RoleHost]:
        """Stop the installation, and start it with another number of instances of a role; return its hosts."""
        for host in self._hosts:
            host.hold()
        self._installation.shards[role] = count
        self._hosts = self._wanted_hosts()
        for host in self._hosts:
            host.release()
        return self._hosts

    def _clients(
        self, app: AppCredentials, ios: IosApp | None
    ) -> tuple[AndroidDevices, Senders, PushGenerator, SimulatedGateways]:
        pushes = PushGenerator(app, ios.app if ios else None, self._world.random("pushes"), self._plan.mixture)
        waits_s = PATIENT_S if self._plan.is_smooth else IMPATIENT_S
        interfaces = {name: self._interface(name, waits_s) for name in ("v2", "android", "ios")}
        senders = Senders(interfaces, pushes, self._ledger, self._world.random("senders"))
        random, smooth = self._world.random("connections"), self._plan.is_smooth
        gateways = SimulatedGateways(self._of("gateway"), self._gateways, self._internet_s, random, is_balanced=smooth)
        devices = AndroidDevices(gateways, app.appkey, self._ledger, self._world.seed, self._plan.pace)
        return devices, senders, pushes, gateways

    async def _open_push_service(
        self, push_service: SimulatedPushService, app: AppCredentials, devices: AndroidDevices
    ) -> None:
        """Give the app its key, and let its devices subscribe and show what their browsers get."""
        changed = await self._registry.UpdateApp(push_service.change_of(app.appkey))
        push_service.note_key(public_key_of(changed.app))

        def show(token: str, msgid: int, content: str) -> None:
            self._hand_overs.shows(token, msgid)
            devices.show_by_system(token, msgid, content)

        push_service.on_shown, devices.address_frame = show, push_service.address_frame

    async def _reader(self, app: AppCredentials, gateways: SimulatedGateways) -> ReadBackClient:
        """Return a read-back client with a registered device of its own, which is not connected any more."""
        device = AndroidDevice(_READERS_DEVICE, gateways, app.appkey, self._ledger, self._world.random("its device"))
        await device.connect()
        await device.disconnect()
        random = self._world.random("reader")
        return ReadBackClient(self._interface("v2"), app, device.state.token, self._ledger, random, self._plan.pace)

    def _interface(self, name: str, waits_s: Sequence[float] = PATIENT_S) -> SimulatedInterface:
        random, edges = self._world.random(f"clients of {name}"), self._of("edge")
        return SimulatedInterface(name, edges, self._edges, self._internet_s, random, self._calls, waits_s)

    def _of(self, role: str) -> list[RoleHost]:
        return [host for host in self._hosts if host.role.name == role]

    async def _ready(self) -> None:
        while not all(host.is_ready for host in self._hosts):
            await asyncio.sleep(_RETRY_S)

    async def _app(self, request: CreateAppRequest) -> AppCredentials:
        """Create an app; repeat the call until it succeeds."""
        while True:
            with suppress(CarillonError):
                created: CreateAppResponse = await self._registry.CreateApp(request)
                return AppCredentials(created.app.appkey, created.secret_key)
            await asyncio.sleep(_RETRY_S)

    async def _ios_app(self) -> IosApp | None:
        """Create an iOS app with its key, and register its devices, in a world that has them."""
        if self._apple is None:
            return None
        ios = IosApp(self._apple, await self._app(self._apple.app()))
        await self._registry.UpdateApp(self._apple.key_for(ios.app.appkey))
        await ios.register(self._interface("v2"))
        return ios

    async def _load(
        self,
        senders: Senders,
        reader: ReadBackClient,
        faults: WorldFaults,
        devices: AndroidDevices,
        ios_tokens: Sequence[str],
    ) -> None:
        reading = asyncio.create_task(reader.run(end_of_load := asyncio.Event()))
        quota = self._world.random("quota")
        user = QuotaUser(self._registry, self._interface("v2"), self._ledger, quota, self._plan.pace)
        using = asyncio.create_task(user.run(end_of_load))
        sending = asyncio.create_task(senders.send_continuously(self._plan.rate, partial(devices.targets, ios_tokens)))
        anew = asyncio.create_task(devices.reinstall())
        begun_s, begun_ms = self._world.loop.time(), self._now_ms()
        if not self._calm_ms:
            self._calm_ms = [(begun_ms, begun_ms + int(min(fault.at_s for fault in self._faults) * 1000))]
        faults.inject([replace(fault, at_s=begun_s + fault.at_s) for fault in self._faults])
        await asyncio.sleep(self._plan.load_s)
        for task in (sending, anew):
            task.cancel()
        await asyncio.wait([sending, anew])
        end_of_load.set()
        faults.heal()
        await asyncio.sleep(max(0, begun_s + latest_end_s(self._faults) - self._world.loop.time()))
        with in_time("a process is not ready, or a device or a request waits for an answer"):
            async with asyncio.timeout(self._plan.settle_s):
                await self._ready()
                await devices.leave()
                await senders.finish()
                await asyncio.gather(reading, using)

    async def _checked(self, checks: SettledChecks, reader: ReadBackClient) -> list[Violation]:
        with in_time("devices cannot connect"):
            found = await checks.settle()
        self._calm_ms.append((self._now_ms(), _NEVER_MS))
        for host in () if self._plan.is_slow else self._of("edge"):  # where it is slow a deadline may pass
            await reader.read_through(self._interface("v2").only(host))
        return found + await checks.reconnect() + await checks.compare()

    async def _stopped(self) -> list[Violation]:
        """Stop all processes, frontends first, and compare each state with one rebuilt from the log."""
        for host in reversed(self._machines.values()):
            await host.stop()
        return [
            Violation("replay", f"the state of {host.name} differs from a replay")
            for host in self._hosts
            if host.role.name in LIVE_REPLAYS
            for compared in await host.verify(self._log)
            if not compared.equal
        ]

    def _now_ms(self) -> int:
        return START_MS + int(self._world.loop.time() * 1000)

    def _record(self, event: Mapping[str, Any]) -> None:
        fields = {name: value for name, value in event.items() if name not in ("time_ms", "what")}
        self._world.trace.json_event(event["what"], fields)
