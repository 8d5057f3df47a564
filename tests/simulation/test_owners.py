"""Owners and standbys of two roles: a successor knows all that the former owner has confirmed, under any faults."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from pyroaring import BitMap

from protos.push.v1.push_pb2 import Audience, Everyone
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, AppFact
from protos.registry.v1.devices_pb2 import Device, DeviceCommand, DeviceFact, RegisterDevice
from protos.registry.v1.registry_pb2 import FindDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import AwaitRequest, Meta, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from protos.targeting.v1.targeting_pb2 import ResolveRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.role import RoleDefinition
from services.domain.topics import APPS, DEVICE_COMMANDS, DEVICES, TOPICS, device_key
from services.errors import CarillonError
from services.log.port import NewRecord
from services.net.rpc.channel import Channel
from services.registry import main as registry
from services.targeting import main as targeting
from tests.simulation.kernel.faults import Fault, Faults
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import Installation, process_name, standby_name
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.log.client import SimulatedLog
from tests.simulation.kernel.network.channels import Network
from tests.simulation.kernel.world import World

_APP = "1000000001"
_LOAD_S = 60.0
_SETTLE_S = 60.0
_ANSWERS_WITHIN_S = 5.0
"""How long callers wait at most after an owner was killed, if nothing else goes wrong."""


@dataclass
class _Callers:
    """Processes that write devices' records and ask targeting for the audience.

    `stale`: the answers that left out a device that had been confirmed before the question.
    """

    installation: Installation
    role: ClassVar[RoleDefinition[Any]] = targeting.ROLE
    confirmed: set[int] = field(default_factory=set)
    stale: list[str] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    _count: int = 0

    async def register(self) -> None:
        """Register one device after the other; each is confirmed when targeting says that it has applied it."""
        log = SimulatedLog(self.installation.broker)
        with self._owner() as channel:
            stub = PositionsServiceStub(channel)
            while True:
                number, self._count = self._count, self._count + 1
                new_record = self._record(number)
                try:
                    (offset,) = await log.append([new_record])
                    position = Position(topic=new_record.topic, partition=0, offset=offset)
                    await stub.Await(AwaitRequest(positions=[position]), timeout=5)
                    self.confirmed.add(number)
                except CarillonError:
                    pass
                await asyncio.sleep(0.1)

    def _record(self, number: int) -> NewRecord:
        device = Device(appkey=_APP, token=str(number), number=number, registered_ms=1)
        fact = DeviceFact(meta=Meta(event_id=number.to_bytes(16, "big"), time_ms=1), device=device)
        return NewRecord(DEVICES.name, 0, device_key(_APP, device.token), fact.SerializeToString())

    async def ask(self) -> None:
        """Ask for all devices; each answer must hold those that were confirmed before the question."""
        with self._owner() as channel:
            loop = self.installation.world.loop
            while True:
                expected = set(self.confirmed)
                try:
                    known = await self._known(channel, expected)
                except CarillonError:
                    continue
                if missing := expected - known:
                    self.stale.append(f"at {loop.time():.3f} s: {sorted(missing)}")
                self.answers_s.append(loop.time())
                await asyncio.sleep(0.05)

    async def _known(self, channel: Channel, expected: set[int]) -> set[int]:
        request = ResolveRequest(appkey=_APP, audience=Audience(everyone=Everyone()), partitions=[0])
        answer = await TargetingServiceStub(channel).Resolve(request, timeout=5)
        return set(BitMap.deserialize(answer.partitions[0].bitmap))

    @contextmanager
    def _owner(self) -> Iterator[Channel]:
        peers = self.installation.peers()
        assert peers.directory is not None
        following = asyncio.create_task(peers.directory.run(SimulatedLog(self.installation.broker)))
        try:
            yield peers.all(self.role.name)[0]
        finally:
            following.cancel()


class _RegistryCallers(_Callers):
    """Processes that command to register devices, and ask the registry for them."""

    role: ClassVar[RoleDefinition[Any]] = registry.ROLE

    def _record(self, number: int) -> NewRecord:
        command = DeviceCommand(
            meta=Meta(event_id=number.to_bytes(16, "big"), time_ms=1),
            appkey=_APP,
            token=str(number),
            register=RegisterDevice(platform=PLATFORM_ANDROID),
        )
        return NewRecord(DEVICE_COMMANDS.name, 0, device_key(_APP, command.token), command.SerializeToString())

    async def _known(self, channel: Channel, expected: set[int]) -> set[int]:
        tokens = sorted(expected)
        request = FindDevicesRequest(appkey=_APP, tokens=map(str, tokens))
        answer = await RegistryServiceStub(channel).FindDevices(request, timeout=5)
        numbers = [number for number in answer.numbers_plus_one if number]
        assert len(set(numbers)) == len(numbers)
        return {token for token, number in zip(tokens, answer.numbers_plus_one, strict=True) if number}


def _faults(random: Random, hosts: Sequence[str], kinds: Sequence[str]) -> list[Fault]:
    seconds = {
        "pause": [1.0, 2.0, 3.0, 10.0],
        "log_cut_off": [1.0, 3.0, 10.0],
        "log_faults": [5.0],
        "block": [1.0, 10.0],
    }
    times_s = sorted(random.uniform(5, _LOAD_S) for _ in range(8))
    found = []
    for at_s in times_s:
        kind = random.choice(kinds)
        amount = random.choice(seconds.get(kind, [0.0])) * (0.5 + random.random())
        found.append(Fault(at_s, kind, random.choice(hosts), amount, other="asks" if kind == "block" else ""))
    return found


def _hosts(role: str) -> tuple[str, str]:
    return process_name(role, 0), standby_name(role, 0)


async def _run(world: World, kind: type[_Callers], faults: Sequence[Fault]) -> _Callers:
    """Run two processes of one shard of the role under the faults; return what their callers saw."""
    broker = Broker(TOPICS, 1, Behaviour(world.random("log"), typical_s=0.002), world.note_stored)
    network = Network(world, Latency(world.random("network delays"), 0.001))
    installation = Installation(
        world, broker, network, {"targeting": 0, "registry": 0, kind.role.name: 1}, has_owners=True
    )
    settings = {"snapshot_s": 5} if kind.role is targeting.ROLE else {}
    hosts = [RoleHost(installation, kind.role, name=name, **settings) for name in _hosts(kind.role.name)]
    app = AppFact(meta=Meta(time_ms=1), app=App(appkey=_APP, platform=PLATFORM_ANDROID))
    await SimulatedLog(broker).append([NewRecord(APPS.name, 0, _APP.encode(), app.SerializeToString())])
    running = [asyncio.create_task(host.run()) for host in hosts]
    callers, injected = kind(installation), Faults(installation, hosts)
    process = world.process("asks")
    calling = [asyncio.create_task(callers.register()), process.start(callers.ask())]
    injected.inject(faults)
    await asyncio.sleep(_LOAD_S)
    injected.heal()
    answered = len(callers.answers_s)
    async with asyncio.timeout(_SETTLE_S):
        while len(callers.answers_s) < answered + 10 or not all(host.is_ready for host in hosts):
            await asyncio.sleep(1)
    for task in calling:
        task.cancel()
    await asyncio.wait(calling)
    await asyncio.gather(*(host.stop() for host in hosts))
    await asyncio.gather(*running)
    log = SimulatedLog(broker)
    for host in hosts:
        assert all(compared.equal for compared in await host.verify(log))
    assert not world.errors
    return callers


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(kind, seed, marks=[pytest.mark.long] * (seed > 0))
        for kind, seeds in ((_Callers, 2), (_RegistryCallers, 3))
        for seed in range(seeds)
    ],
)
def test_what_an_owner_has_confirmed_is_known_to_every_later_one(
    tmp_path: Path, kind: type[_Callers], seed: int
) -> None:
    """Owners are killed, paused, and cut off from the log and from their callers."""
    random = Random(seed)
    kinds = random.sample(["kill", "pause", "pause", "log_cut_off", "log_faults", "block"], 3)
    world = World(seed, tmp_path)
    callers = world.run(lambda world: _run(world, kind, _faults(random, _hosts(kind.role.name), kinds)))
    assert not callers.stale
    assert len(callers.confirmed) > 100


@pytest.mark.parametrize(
    ("kind", "seed"), [(_Callers, 0), (_RegistryCallers, 0), pytest.param(_RegistryCallers, 1, marks=pytest.mark.long)]
)
def test_a_standby_answers_soon_after_its_owner_was_killed(tmp_path: Path, kind: type[_Callers], seed: int) -> None:
    kills = [Fault(15.0 * (1 + n), "kill", _hosts(kind.role.name)[n % 2]) for n in range(3)]
    callers = World(seed, tmp_path).run(lambda world: _run(world, kind, kills))
    gaps_s = [later - earlier for earlier, later in zip(callers.answers_s, callers.answers_s[1:], strict=False)]
    assert 1 < max(gaps_s) < _ANSWERS_WITHIN_S
    assert not callers.stale
