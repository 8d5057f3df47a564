"""A world of registry, targeting, scheduling and delivery under a driver's load and faults."""

import asyncio
from collections.abc import Sequence
from random import Random

from services.delivery.main import ROLE as DELIVERY
from services.domain.topics import TOPICS
from services.registry.main import ROLE as REGISTRY
from services.scheduling.main import ROLE as SCHEDULING
from services.targeting.main import ROLE as TARGETING
from tests.simulation.backends.checks import answered_and_lost, replays_unequal, until_settled
from tests.simulation.backends.driver import Driver
from tests.simulation.kernel.faults import Fault, Faults, random_faults
from tests.simulation.kernel.hosts import Installation, RoleHost, process_name
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.log.broker import Behaviour, Broker
from tests.simulation.kernel.network.channels import Network
from tests.simulation.kernel.world import LoggedError, World

ROLES = (REGISTRY, TARGETING, SCHEDULING, DELIVERY)
PARTITIONS = 4
LOAD_S = 60.0
"""How long commands are written and faults happen."""

SETTLE_S = 180.0
"""How long the roles may take, once all faults are over, until nothing is left to do."""

_NO_APNS = {"delivery": {"apns_url": "https://127.0.0.1:1"}}
"""There are no iOS devices; with an address of Apple's service set, delivery starts no simulator of it."""


class Backends:
    """The kind of world with these roles; see running.Kind. `faults_per_world` is their mean number."""

    def __init__(self, faults_per_world: int = 10) -> None:
        self._mean = faults_per_world

    def faults(self, seed: int) -> list[Fault]:
        random = Random(f"{seed}/faults")
        hosts = [process_name(role, shard) for role, count in shards(seed).items() for shard in range(count)]
        return random_faults(random, hosts, random.randrange(2 * self._mean + 1), LOAD_S)

    async def run(self, world: World, faults: Sequence[Fault]) -> list[str]:
        broker = Broker(TOPICS, PARTITIONS, Behaviour(world.random("log")), world.note_stored)
        network = Network(world, Latency(world.random("network delays"), 0.0005))
        installation = Installation(world, broker, network, shards(world.seed))
        hosts = [
            RoleHost(installation, role, shard, snapshot_s=20, **_NO_APNS.get(role.name, {}))
            for role in ROLES
            for shard in range(installation.shards[role.name])
        ]
        running = [asyncio.create_task(host.run(), name=host.name) for host in hosts]
        injected = Faults(installation, hosts)
        injected.inject(faults)
        driver = Driver(installation, world.random("driver"))
        await driver.run(LOAD_S)
        injected.heal()
        findings = await until_settled(installation, hosts, driver.ledger, SETTLE_S)
        await asyncio.gather(*(host.stop() for host in reversed(hosts)))
        await asyncio.gather(*running)
        findings += answered_and_lost(installation, driver.ledger)
        findings += await replays_unequal(installation, hosts)
        return findings + [
            f"{each.process}: {each.text} {each.details}" for each in world.errors if not _expected(each)
        ]


def _expected(error: LoggedError) -> bool:
    """Return whether faults explain the error: a push whose audience cannot be resolved fails after a while."""
    return error.text == "a push failed"


def shards(seed: int) -> dict[str, int]:
    """Return the number of instances by role."""
    random = Random(f"{seed}/shards")
    return {role.name: random.choice([1, 2]) for role in ROLES}
