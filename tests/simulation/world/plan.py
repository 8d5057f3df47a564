"""The plan of a world of an installation: its processes and its clients. `seeds/` chooses plans and faults by seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from services.domain.role_context import ROLES_WITH_STANDBYS
from tests.simulation.kernel.installation import process_name, standby_name
from tests.simulation.kernel.latency import Latency
from tests.soak.pushes import ANY_PUSH, Mixture
from tests.soak.settled_checks import SETTLE_S

STATEFUL = ("registry", "targeting", "scheduling", "delivery")
"""Roles with a state, each of which may have several shards."""

EVERY_ROLE = ("analytics", *STATEFUL, "gateway", "edge")
"""The roles of a world with analytics."""

CLIENT_FAULTS = ("reset_connections", "lose_connections", "stop_reading")
"""Faults of the devices' connections alone."""

_INTERNET_S = 0.02
_PAUSE_S = 2.0
"""How long a client waits between two actions at most, at the usual pace."""


@dataclass(frozen=True)
class Plan:
    """One world. `processes`: the number of instances by role. `rate`: requests a second while `load_s` lasts.

    `has_owners` as for Installation: each shard of a role with standbys has one then. `pace`: how many times longer
    than usual the clients wait between two actions. `log_slowness` and `network_slowness`: how many times longer than
    usual the log and the network between the processes take. `asks_real_store`: a world with analytics ends with
    questions to a real store. `steady`: further devices, which only stay connected. `mixture`: which pushes.
    `is_smooth`: clients reach the edges and gateways through load balancers, over lines with equal delays, nothing that
    happens counts as broken, and no request may fail or take long. `has_browsers`: the Android app's devices are
    browsers with subscriptions, to which messages are handed over while they are away.
    """

    partitions: int
    processes: Mapping[str, int]
    devices: int
    rate: float
    load_s: float
    snapshot_s: int
    has_ios: bool
    has_owners: bool = False
    pace: float = 1.0
    log_slowness: int = 1
    network_slowness: int = 1
    asks_real_store: bool = False
    steady: int = 0
    mixture: Mixture = ANY_PUSH
    is_smooth: bool = False
    has_browsers: bool = False

    def internet_s(self, random: Random) -> Callable[[], float]:
        """Return what gives the seconds that the next message takes between the clients and the service."""
        return (lambda: _INTERNET_S) if self.is_smooth else Latency(random, _INTERNET_S)

    @property
    def settle_s(self) -> float:
        """How long after the load something may be pending: the longest pause of a client, or a timed push."""
        return SETTLE_S + _PAUSE_S * self.pace + self.mixture.delay_s[1]

    @property
    def is_slow(self) -> bool:
        return self.log_slowness > 1 or self.network_slowness > 1

    @property
    def lateness(self) -> int:
        """How many times later than usual a push may be."""
        return 4 if self.is_slow else 1

    @property
    def hosts(self) -> Sequence[str]:
        return [*(process_name(*each) for each in self._shards()), *self._standbys()]

    @property
    def owners(self) -> Sequence[str]:
        """The processes that may own a shard beside others."""
        return [process_name(*each) for each in self._shards() if self.has_standby(each[0])] + self._standbys()

    def has_standby(self, role: str) -> bool:
        return self.has_owners and role in ROLES_WITH_STANDBYS

    def _shards(self) -> Sequence[tuple[str, int]]:
        return [(role, shard) for role, count in self.processes.items() for shard in range(count)]

    def _standbys(self) -> list[str]:
        return [standby_name(*each) for each in self._shards() if self.has_standby(each[0])]
