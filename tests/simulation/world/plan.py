"""What a seed makes of a world: its processes, its clients, and its faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.simulation.kernel.faults import Fault, Faults, random_faults
from tests.simulation.kernel.hosts import Installation, RoleHost, process_name
from tests.simulation.world.clients import SimulatedGateways

STATEFUL = ("registry", "targeting", "scheduling", "delivery")
"""Roles with a state, each of which may have several shards."""

_COUNTS = (0, 1, 2, 4, 8)
_CLIENT_FAULTS = ("reset_connections", "lose_connections")
_UNCHECKED = frozenset({"set_clock"})
"""Kinds of faults after which the expected audiences are not certain: they are found by times of several clocks."""

_LASTING = frozenset({"pause", "block"})


@dataclass(frozen=True)
class Plan:
    """One world. `processes`: the number of instances by role. `rate`: requests a second while `load_s` lasts."""

    partitions: int
    processes: Mapping[str, int]
    devices: int
    rate: float
    load_s: float
    snapshot_s: int

    @property
    def hosts(self) -> Sequence[str]:
        return [process_name(role, shard) for role, count in self.processes.items() for shard in range(count)]


class WorldFaults(Faults):
    """The faults of hosts, log and network, and those of the devices' connections."""

    def __init__(self, installation: Installation, hosts: Sequence[RoleHost], gateways: SimulatedGateways) -> None:
        super().__init__(installation, hosts)
        self._gateways = gateways

    def reset_connections(self, fault: Fault) -> None:
        """End all connections of devices; both ends are told."""
        self._gateways.reset()

    def lose_connections(self, fault: Fault) -> None:
        """Take all devices off the network for a moment; the gateways are not told."""
        self._gateways.lose()


def plan_of(seed: int) -> Plan:
    random = Random(f"{seed}/plan")
    processes = {role: random.choice((1, 1, 2)) for role in STATEFUL}
    processes |= {"gateway": random.choice((1, 2)), "edge": random.choice((1, 2))}
    return Plan(
        partitions=random.choice((2, 4)),
        processes=processes,
        devices=random.randint(2, 8),
        rate=random.choice((0.5, 2.0, 5.0)),
        load_s=random.choice((10.0, 20.0, 40.0)),
        snapshot_s=random.choice((5, 20, 300)),
    )


def faults_of(seed: int) -> list[Fault]:
    """Return the faults of a seed, of which one in five has none. They begin with the load."""
    plan, random = plan_of(seed), Random(f"{seed}/faults")
    count = random.choice(_COUNTS)
    faults = [each for each in random_faults(random, plan.hosts, count, plan.load_s) if each.kind not in _UNCHECKED]
    if count and random.random() < 0.5:
        faults.append(Fault(random.uniform(0, plan.load_s), random.choice(_CLIENT_FAULTS)))
    return sorted(faults, key=lambda fault: fault.at_s)


def latest_end_s(faults: Sequence[Fault]) -> float:
    """Return when the last fault ends of those that `Faults.heal` does not end."""
    return max((fault.at_s + fault.amount for fault in faults if fault.kind in _LASTING), default=0.0)
