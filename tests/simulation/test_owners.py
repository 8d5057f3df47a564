"""Owners and standbys of targeting: what one process has confirmed, its successor knows, whatever happens meanwhile."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from pyroaring import BitMap

from protos.push.v1.push_pb2 import Audience, Everyone
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.runtime.v1.log_pb2 import AwaitRequest, Meta, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from protos.targeting.v1.targeting_pb2 import ResolveRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.topics import DEVICES, TOPICS, device_key
from services.runtime.errors import CarillonError
from services.runtime.log.port import NewRecord
from services.runtime.rpc.channel import Channel
from services.targeting.main import ROLE
from tests.simulation.kernel.faults import Fault, Faults
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import Installation, process_name, standby_name
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.log.broker import Behaviour, Broker
from tests.simulation.kernel.log.client import SimulatedLog
from tests.simulation.kernel.network.channels import Network
from tests.simulation.kernel.world import World

_APP = "1000000001"
_HOSTS = (process_name("targeting", 0), standby_name("targeting", 0))
_LOAD_S = 60.0
_SETTLE_S = 60.0
_ANSWERS_WITHIN_S = 5.0
"""How long callers wait at most after an owner was killed, if nothing else goes wrong."""


@dataclass
class _Callers:
    """Processes that register devices and ask for the audience.

    `stale`: the answers that left out a device that had been confirmed before the question.
    """

    installation: Installation
    confirmed: set[int] = field(default_factory=set)
    stale: list[str] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    _count: int = 0

    async def register(self) -> None:
        """Register one device after the other; each is confirmed when targeting says that it has applied it."""
        log = SimulatedLog(self.installation.broker)
        with self._targeting() as channel:
            stub = PositionsServiceStub(channel)
            while True:
                number, self._count = self._count, self._count + 1
                device = Device(appkey=_APP, token=str(number), number=number, registered_ms=1)
                fact = DeviceFact(meta=Meta(event_id=number.to_bytes(16, "big"), time_ms=1), device=device)
                key = device_key(_APP, device.token)
                try:
                    (offset,) = await log.append([NewRecord(DEVICES.name, 0, key, fact.SerializeToString())])
                    position = Position(topic=DEVICES.name, partition=0, offset=offset)
                    await stub.Await(AwaitRequest(positions=[position]), timeout=5)
                    self.confirmed.add(number)
                except CarillonError:
                    pass
                await asyncio.sleep(0.1)

    async def ask(self) -> None:
        """Ask for all devices; each answer must hold those that were confirmed before the question."""
        with self._targeting() as channel:
            stub, loop = TargetingServiceStub(channel), self.installation.world.loop
            request = ResolveRequest(appkey=_APP, audience=Audience(everyone=Everyone()), partitions=[0])
            while True:
                expected = set(self.confirmed)
                try:
                    answer = await stub.Resolve(request, timeout=5)
                except CarillonError:
                    continue
                if missing := expected - set(BitMap.deserialize(answer.partitions[0].bitmap)):
                    self.stale.append(f"at {loop.time():.3f} s: {sorted(missing)}")
                self.answers_s.append(loop.time())
                await asyncio.sleep(0.05)

    @contextmanager
    def _targeting(self) -> Iterator[Channel]:
        peers = self.installation.peers()
        assert peers.directory is not None
        following = asyncio.create_task(peers.directory.run(SimulatedLog(self.installation.broker)))
        try:
            yield peers.all("targeting")[0]
        finally:
            following.cancel()


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


async def _run(world: World, faults: Sequence[Fault]) -> _Callers:
    """Run two processes of one shard of targeting under the faults; return what their callers saw."""
    broker = Broker(TOPICS, 1, Behaviour(world.random("log"), typical_s=0.002), world.note_stored)
    network = Network(world, Latency(world.random("network delays"), 0.001))
    installation = Installation(world, broker, network, {"targeting": 1, "registry": 0}, has_owners=True)
    hosts = [RoleHost(installation, ROLE, name=name, snapshot_s=5) for name in _HOSTS]
    running = [asyncio.create_task(host.run()) for host in hosts]
    callers, injected = _Callers(installation), Faults(installation, hosts)
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


@pytest.mark.parametrize("seed", range(3))
def test_what_an_owner_has_confirmed_is_known_to_every_later_one(tmp_path: Path, seed: int) -> None:
    """Owners are killed, paused, and cut off from the log and from their callers."""
    random = Random(seed)
    kinds = random.sample(["kill", "pause", "pause", "log_cut_off", "log_faults", "block"], 3)
    world = World(seed, tmp_path)
    callers = world.run(lambda world: _run(world, _faults(random, _HOSTS, kinds)))
    assert not callers.stale
    assert len(callers.confirmed) > 100


@pytest.mark.parametrize("seed", range(2))
def test_a_standby_answers_soon_after_its_owner_was_killed(tmp_path: Path, seed: int) -> None:
    kills = [Fault(15.0 * (1 + n), "kill", _HOSTS[n % 2]) for n in range(3)]
    callers = World(seed, tmp_path).run(lambda world: _run(world, kills))
    gaps_s = [later - earlier for earlier, later in zip(callers.answers_s, callers.answers_s[1:], strict=False)]
    assert 1 < max(gaps_s) < _ANSWERS_WITHIN_S
    assert not callers.stale
