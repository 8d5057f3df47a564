"""Derives the plan of a world from its seed: its processes, its clients, and its faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from services.domain.role_addresses import ROLES_WITH_STANDBYS
from tests.simulation.kernel.fault_lists import (
    archive_faults,
    brief_faults,
    is_losing,
    loss_faults,
    owner_faults,
    rare_faults,
    shortened,
    split_faults,
    swarm_faults,
)
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.installation import process_name, standby_name
from tests.simulation.world.apple import random_trouble
from tests.simulation.world.brief import LOG_SLOWNESS, NETWORK_SLOWNESS, brief

STATEFUL = ("registry", "targeting", "scheduling", "delivery")
"""Roles with a state, each of which may have several shards."""

_COUNTS = (0, 1, 2, 4, 8)
_PACES = (1.0, 1.0, 5.0, 20.0, 20.0)
_PACE_WITH_OWNERS = 5.0
"""The highest pace of a world with owners, most of whose CPU time goes to what they say of themselves."""

_STORE_FAULTS = ("store_away", "store_fails")
_OPERATOR_FAULTS = ("pause_app", "rotate_secret", "revoke_key")
CLIENT_FAULTS = ("reset_connections", "lose_connections")
"""Faults of the devices' connections alone."""

_LEFT_OUT = frozenset({"set_clock"})
"""A kind of fault that `more_faults` makes."""

_ARCHIVED = 0.25
"""Share of the worlds with faults in which old records are archived."""

_WITH_ANALYTICS = 0.3
"""Share of the worlds that have analytics."""

_CLOCKS_SET_BACK = 0.1
"""Share of the worlds with faults in which clocks of delivery are set back."""

_BRIEF = 0.92
"""Share of the worlds that are brief."""

_BRIEF_CALM = 0.1
"""Share of the brief worlds that have no fault."""

_CALM = 0.6
"""Share of the worlds without random faults that have no fault at all."""


_OWNERS_EVERY, _OWNERS_RESTS = 8, (3, 6)
"""The seeds whose worlds have owners, and a standby for each shard of the roles that can have one."""

_CUT_OFF_EVERY, _CUT_OFF_REST = 10, 5
_CUT_OFF_S = 8.0
_MOVING_EVERY, _MOVING_REST = 10, 7
_MOVES, _MOVING_SLOWNESS = 6, 13
"""The seeds in which devices change gateways, acknowledgements reach delivery slowly, and nothing else fails."""

_SPLIT = 0.4
_LASTING = frozenset({"down", "pause", "block"})


@dataclass(frozen=True)
class Plan:
    """One world. `processes`: the number of instances by role. `rate`: requests a second while `load_s` lasts.

    `has_owners` as for Installation: each shard of a role with standbys has one then. `pace`: how many times longer
    than usual the clients wait between two actions. `log_slowness` and `network_slowness`: how many times longer than
    usual the log and the network between the processes take.
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


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed. Most worlds are brief, which finds more in the same time.

    Some of the others have a slower load over a longer time, or a slow log and network.
    """
    if is_brief(seed):
        return brief(_usual_plan(seed), Random(f"{seed}/brief plan"))
    plan, slowness = _usual_plan(seed), Random(f"{seed}/slowness")
    if _is_moving(seed):
        processes = {**plan.processes, "gateway": 2}
        return replace(plan, processes=processes, rate=10.0, load_s=15.0, network_slowness=_MOVING_SLOWNESS)
    pace = 1.0 if _is_cut_off(seed) else Random(f"{seed}/pace").choice(_PACES)
    pace = min(pace, _PACE_WITH_OWNERS) if plan.has_owners else pace
    return replace(
        plan,
        pace=pace,
        rate=plan.rate / pace,
        load_s=plan.load_s * pace,
        log_slowness=slowness.choice(LOG_SLOWNESS),
        network_slowness=slowness.choice(NETWORK_SLOWNESS),
    )


def is_brief(seed: int) -> bool:
    return Random(f"{seed}/brief").random() < _BRIEF


def _usual_plan(seed: int) -> Plan:
    """Return the plan at the usual pace. Odd seeds have small worlds, more of which run in the same time."""
    random = Random(f"{seed}/plan")
    processes = {role: random.choice((1, 1, 2)) for role in STATEFUL}
    processes |= {"gateway": random.choice((1, 2)), "edge": random.choice((1, 2))}
    if Random(f"{seed}/analytics").random() < _WITH_ANALYTICS:
        processes = {"analytics": 1, **processes}
    plan = Plan(
        partitions=random.choice((2, 4)),
        processes=processes,
        devices=random.randint(2, 8),
        rate=random.choice((0.5, 2.0, 5.0)),
        load_s=random.choice((10.0, 20.0, 40.0)),
        snapshot_s=random.choice((5, 20, 300)),
        has_ios=random.random() < 0.3,
        has_owners=seed % _OWNERS_EVERY in _OWNERS_RESTS,
    )
    if seed % 2 == 0:
        return plan
    size = Random(f"{seed}/size")
    plan = replace(
        plan,
        devices=size.randint(2, 5),
        rate=size.choice((1.0, 4.0, 10.0)),
        load_s=size.choice((4.0, 8.0, 15.0)),
        snapshot_s=size.choice((1, 3, 300)),
    )
    return replace(plan, load_s=15.0, snapshot_s=size.choice((1, 3))) if _is_cut_off(seed) else plan


def faults_of(seed: int) -> list[Fault]:
    """Return the faults of a seed, of which one in nine has none. They begin with the load."""
    plan, random = plan_of(seed), Random(f"{seed}/faults")
    if is_brief(seed):
        return _brief_faults(seed, plan)
    if _is_moving(seed):
        moves = [Fault(random.uniform(0, plan.load_s), "lose_connections") for _ in range(_MOVES)]
        return sorted(moves, key=lambda fault: fault.at_s)
    if _is_cut_off(seed):
        return cut_off_and_killed(random, plan)
    count = random.choice(_COUNTS) * (2 if plan.pace == max(_PACES) else 1)
    if count == 0 and random.random() < _CALM:
        return []
    faults = [
        *swarm_faults(random, plan.hosts, count, plan.load_s, _LEFT_OUT),
        *more_faults(seed, plan),
        *clock_faults(seed, plan),
        *analytics_faults(seed, plan),
    ]
    faults += loss_faults(Random(f"{seed}/losses"), faults, plan.hosts, plan.load_s) if is_losing(seed) else []
    if plan.has_owners:
        changes = Random(f"{seed}/owners")
        faults += owner_faults(changes, plan.owners, changes.choice((0, 1, 2, 4)), plan.load_s)
        faults += split_faults(changes, plan.hosts, plan.load_s) if changes.random() < _SPLIT else []
    if count and random.random() < 0.5:
        faults.append(Fault(random.uniform(0, plan.load_s), random.choice(CLIENT_FAULTS)))
    return sorted(faults, key=lambda fault: fault.at_s)


def _brief_faults(seed: int, plan: Plan) -> list[Fault]:
    random = Random(f"{seed}/brief faults")
    if random.random() < _BRIEF_CALM:
        return []
    faults = brief_faults(random, plan.hosts, plan.load_s, _LEFT_OUT)
    if plan.has_owners:
        faults += owner_faults(random, plan.owners, random.choice((1, 2)), plan.load_s)
    others = [*more_faults(seed, plan), *clock_faults(seed, plan), *analytics_faults(seed, plan)]
    others += [Fault(random.uniform(0, plan.load_s), random.choice(CLIENT_FAULTS))]
    faults += map(shortened, random.sample(others, min(len(others), random.choice((0, 0, 1, 2)))))
    faults += loss_faults(Random(f"{seed}/losses"), faults, plan.hosts, plan.load_s) if is_losing(seed) else []
    return sorted(faults, key=lambda fault: fault.at_s)


def _is_moving(seed: int) -> bool:
    return seed % _MOVING_EVERY == _MOVING_REST


def _is_cut_off(seed: int) -> bool:
    return seed % _CUT_OFF_EVERY == _CUT_OFF_REST


def cut_off_and_killed(random: Random, plan: Plan) -> list[Fault]:
    """Cut a process off from the log for some seconds, then kill it: nothing that it has confirmed may be lost."""
    role = random.choice(("edge", "delivery"))
    target, at_s = process_name(role, random.randrange(plan.processes[role])), random.uniform(1, 5)
    return [
        Fault(at_s, "log_cut_off", target, _CUT_OFF_S),
        Fault(at_s + random.uniform(1, _CUT_OFF_S - 1), "kill", target),
    ]


def more_faults(seed: int, plan: Plan) -> list[Fault]:
    """Return further faults of a seed: of clocks and disks, upgrades, and changes by an operator."""
    random = Random(f"{seed}/more faults")
    faults = rare_faults(random, plan.hosts, random.choice((0, 0, 1, 2)), plan.load_s)
    for _ in range(random.choice((0, 0, 1, 2))):
        at_s, kind = random.uniform(0, plan.load_s), random.choice(_OPERATOR_FAULTS)
        faults.append(Fault(at_s, kind, amount=random.uniform(1, 20) if kind == "pause_app" else 0.0))
    for _ in range(random.choice((0, 1, 2)) if plan.has_ios else 0):
        faults.append(Fault(random.uniform(0, plan.load_s), random_trouble(random), amount=random.uniform(1, 20)))
    if random.random() < 0.1 and not plan.has_owners:
        faults.append(Fault(random.uniform(0, plan.load_s), "run_second", "scheduling-0", random.uniform(1, 20)))
    if random.random() < 0.2:
        role, others = random.choice(STATEFUL), (1, 2)
        faults.append(Fault(random.uniform(0, plan.load_s), "reshard", role, float(random.choice(others))))
    if random.random() < _ARCHIVED:
        faults += archive_faults(random, plan.hosts, plan.load_s)
    return faults


def analytics_faults(seed: int, plan: Plan) -> list[Fault]:
    """Return faults of the analytics store, and of the process that fills it, in a world that has them."""
    random = Random(f"{seed}/analytics faults")
    if "analytics" not in plan.processes:
        return []
    of_store = [
        Fault(random.uniform(0, plan.load_s), kind, amount=random.choice((1, 10, 30)) * (0.5 + random.random()))
        for kind in random.choices(_STORE_FAULTS, k=random.choice((0, 1, 2)))
    ]
    host = [process_name("analytics", 0)]
    return of_store + swarm_faults(random, host, random.choice((0, 1, 2, 4)), plan.load_s, _LEFT_OUT)


def clock_faults(seed: int, plan: Plan) -> list[Fault]:
    """Return, in one seed of ten, faults that set the clock of one process back, mostly of delivery, and kill it.

    Restarted processes of delivery fold records with times that go back.
    """
    random = Random(f"{seed}/clocks")
    if random.random() >= _CLOCKS_SET_BACK:
        return []
    target = process_name("delivery", random.randrange(plan.processes["delivery"]))
    target = random.choice((target, random.choice(plan.hosts)))
    changes = [
        Fault(random.uniform(0, plan.load_s), "set_clock", target, random.choice((-60.0, -20.0)))
        for _ in range(random.choice((1, 2)))
    ]
    return [*changes, *(Fault(random.uniform(0, plan.load_s), "kill", target) for _ in range(3))]


def latest_end_s(faults: Sequence[Fault]) -> float:
    """Return when the last fault ends of those that `Faults.heal` does not end."""
    return max((fault.at_s + fault.amount for fault in faults if fault.kind in _LASTING), default=0.0)
