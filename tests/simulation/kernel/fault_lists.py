"""Lists of faults, chosen by a random generator: all kinds, a few kinds, or those after which owners change."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from services.process.crashpoint import Point
from tests.simulation.kernel.faults import Fault

_ONE_TARGET = 0.3
"""Share of the lists of faults that have one target."""

_BRIEF_S = 8.0
"""How long a fault of a brief world lasts at most."""

_LONGER = 20
"""How many times longer a fault of a long world lasts than in others."""

_LASTING = frozenset(
    {
        *("down", "pause", "block", "log_unavailable", "log_cut_off", "log_half_cut_off", "log_faults", "resets"),
        *("fill_disk", "slow_reads", "pause_app", "store_away", "store_fails", "stop_reading"),
    }
)
"""Kinds of faults whose amount is the seconds that they last."""

_OF_STEPS = frozenset({"kill_after_steps"})
"""Kinds of faults whose amount is a number of steps."""

_OF_PART = 0.5
"""Share of the hosts that a split network keeps from a part of the log."""

_ALL_POWER = 0.04
"""Share of the worlds with faults in which all hosts lose their power at once."""

_FEWER_STEPS = 10
"""How many times fewer steps a process has in a brief world, before it is killed after a number of them."""

_OF_FILES = frozenset({"cut_power", "lose_disk", "fill_disk", "upgrade"})
"""Kinds of faults of files. A process without any would only be killed, or not even that."""

_WITHOUT_FILES = ("edge", "gateway")


class Setting(Protocol):
    """The properties of a world's plan by which its faults are chosen; the plans of both kinds of worlds have them."""

    @property
    def hosts(self) -> Sequence[str]: ...

    @property
    def owners(self) -> Sequence[str]: ...

    @property
    def load_s(self) -> float: ...

    @property
    def has_owners(self) -> bool: ...

    @property
    def has_ios(self) -> bool: ...


def swarm_faults(
    random: Random, plan: Setting, hosts: Sequence[str], count: int, without: Collection[str] = ()
) -> list[Fault]:
    """Return a random list of faults of these hosts, in the order of their times; `without`: kinds that are left out.

    Most lists have few kinds of faults, and some have one target: such worlds find what others hide, because a fault
    of one kind often keeps the next one from reaching far (swarm testing: Groce and others, 2012).
    """
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if kind not in without}
    chosen = random.sample(list(weights), min(len(weights), random.choice((1, 2, 4, len(weights)))))
    targets = [random.choice(hosts)] if random.random() < _ONE_TARGET else hosts
    kinds = {kind: weights[kind] for kind in chosen}
    faults = [_random_fault(random, plan, targets, kinds) for _ in range(count)]
    return sorted(faults, key=lambda fault: fault.at_s)


def _random_fault(random: Random, plan: Setting, targets: Sequence[str], kinds: Mapping[str, int]) -> Fault:
    """Return a fault of one of these kinds and targets; a kill where the kind can affect none of the targets."""
    at_s, kind = random.uniform(0, plan.load_s), random.choices(list(kinds), list(kinds.values()))[0]
    affected = [target for target in targets if _affects(kind, target, plan)]
    kind, target = (kind, random.choice(affected)) if affected else ("kill", random.choice(targets))
    amount = _AMOUNTS[kind](random) if kind in _AMOUNTS else 0.0
    match kind:
        case "block":
            others = [host for host in plan.hosts if host != target and _affects(kind, host, plan)]
            return Fault(at_s, kind, target, amount, random.choice(others))
        case "kill_at_point":
            return Fault(at_s, kind, target, amount, _point(random, target, plan))
        case "log_half_cut_off":
            return Fault(at_s, kind, target, amount, _half(random))
        case _:
            return Fault(at_s, kind, target, amount)


def _affects(kind: str, target: str, plan: Setting) -> bool:
    """Return whether a fault of the kind can do to the target what no other kind does."""
    role = target.partition("-")[0]
    match kind:
        case "block":
            return role not in ("analytics", "accounts")  # which call no other role, and are called by none here
        case "kill_at_append":
            return role != "analytics" and (role != "targeting" or plan.has_owners)  # which append nothing
        case _:
            return kind not in _OF_FILES or role not in _WITHOUT_FILES


def brief_faults(random: Random, plan: Setting, without: Collection[str] = ()) -> list[Fault]:
    """Return a random list of a few faults of one or two kinds, in the order of their times; none lasts long."""
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if kind not in without}
    kinds = {kind: weights[kind] for kind in random.sample(list(weights), random.choice((1, 2)))}
    count = random.choice((1, 1, 2, 3))
    return sorted(
        (shortened(_random_fault(random, plan, plan.hosts, kinds)) for _ in range(count)),
        key=lambda fault: fault.at_s,
    )


def shortened(fault: Fault) -> Fault:
    """Return the fault as in a brief world: it is no longer than _BRIEF_S, or comes after fewer steps."""
    return fewer_steps(fault) if fault.kind in _OF_STEPS else replace(fault, amount=min(fault.amount, _BRIEF_S))


def fewer_steps(fault: Fault) -> Fault:
    """Return the fault as in a brief world where its amount is a number of steps; return others as they are."""
    return replace(fault, amount=fault.amount // _FEWER_STEPS) if fault.kind in _OF_STEPS else fault


def lengthened(fault: Fault, longer: float) -> Fault:
    """Return the fault as in a world that lasts `longer` times longer: minutes instead of seconds.

    A clock drifts more slowly there, so that it becomes no more wrong than in other worlds.
    """
    if fault.kind == "drift_clock":
        return replace(fault, amount=fault.amount / longer)
    return replace(fault, amount=fault.amount * _LONGER) if fault.kind in _LASTING else fault


def rare_faults(random: Random, plan: Setting, count: int) -> list[Fault]:
    """Return a random list of faults of further kinds, in the order of their times."""
    kinds = dict.fromkeys(_RARE, 1)
    return sorted((_random_fault(random, plan, plan.hosts, kinds) for _ in range(count)), key=lambda fault: fault.at_s)


def owner_faults(random: Random, plan: Setting, count: int) -> list[Fault]:
    """Return a random list of faults of owners after which others own their shards, in the order of their times.

    A pause or a partition is about as long as a standby needs to take over, so that former owners come back then.
    """
    kinds = random.sample(list(_OWNER_WEIGHTS), random.choice((1, 2, len(_OWNER_WEIGHTS))))
    chosen = {kind: _OWNER_WEIGHTS[kind] for kind in kinds}
    return sorted((_owner_fault(random, plan, chosen) for _ in range(count)), key=lambda fault: fault.at_s)


def split_faults(random: Random, plan: Setting) -> list[Fault]:
    """Return faults that cut some of the hosts off from the same half of the log's partitions, at the same time.

    So it is where one of the servers that hold the log is reached by a part of the network only.
    """
    at_s, lasts_s = random.uniform(0, plan.load_s), random.choice([3, 10, 20]) * (0.5 + random.random())
    half = _half(random)
    return [Fault(at_s, "log_half_cut_off", host, lasts_s, half) for host in plan.hosts if random.random() < _OF_PART]


def power_faults(seed: int, plan: Setting) -> list[Fault]:
    """Return, for a few seeds, a loss of the power of all hosts at once, as where one machine runs all roles."""
    random = Random(f"{seed}/all power")
    at_s = random.uniform(0.2, 1) * plan.load_s
    return [Fault(at_s, "cut_all_power")] if random.random() < _ALL_POWER else []


def with_files(plan: Setting) -> Sequence[str]:
    """Return the hosts whose processes keep files."""
    return [host for host in plan.hosts if host.partition("-")[0] not in _WITHOUT_FILES]


def _half(random: Random) -> str:
    """Return a name for half of the log's partitions."""
    return str(random.randrange(1000))


def _owner_fault(random: Random, plan: Setting, kinds: Mapping[str, int]) -> Fault:
    at_s, target = random.uniform(0, plan.load_s), random.choice(plan.owners)
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    amount = _OWNER_AMOUNTS[kind](random) if kind in _OWNER_AMOUNTS else 0.0
    other = _point(random, target, plan) if kind == "kill_at_point" else _half(random) if kind == "slow_reads" else ""
    return Fault(at_s, kind, target, amount, other)


def _point(random: Random, target: str, plan: Setting) -> str:
    """Return one of the crash points that the role can reach."""
    role = target.partition("-")[0]
    prefixes = (*_POINTS.get(role, ("",)), *(("service",) if role == "delivery" and plan.has_ios else ()))
    return str(random.choice([point for point in Point if point.startswith(prefixes)]))


_POINTS: Mapping[str, tuple[str, ...]] = {
    "registry": ("follower", "command"),
    "targeting": ("follower", "snapshot"),
    "scheduling": ("follower", "task", "command"),
    "delivery": ("push", "cancel", "expiry", "outcomes", "snapshot"),
    "gateway": ("sessions", "reports"),
    "edge": ("command",),
    "analytics": ("range",),
    "accounts": ("follower",),
}
"""The beginnings of the names of the crash points that a role can reach."""

_WEIGHTS: Mapping[str, int] = {
    "kill": 2,
    "kill_after_steps": 8,
    "kill_at_point": 6,
    "cut_power": 3,
    "lose_disk": 1,
    "pause": 4,
    "set_clock": 1,
    "block": 4,
    "log_unavailable": 2,
    "log_cut_off": 3,
    "log_faults": 4,
    "resets": 4,
    "kill_at_append": 6,
    "down": 2,
    "log_half_cut_off": 2,
}
_OWNER_WEIGHTS: Mapping[str, int] = {
    "kill": 3,
    "kill_after_steps": 3,
    "kill_at_point": 2,
    "kill_at_append": 2,
    "down": 2,
    "restart": 4,
    "pause": 8,
    "log_cut_off": 6,
    "log_faults": 1,
    "slow_reads": 3,
}
_RARE = ("fill_disk", "upgrade", "set_clock", "drift_clock")
_AMOUNTS: Mapping[str, Callable[[Random], float]] = {
    "kill_after_steps": lambda random: float(random.randrange(random.choice((300, 1000, 3000)))),
    "down": lambda random: random.choice([10, 30]) * (0.5 + random.random()),
    "kill_at_append": lambda random: float(random.randrange(2)),
    "pause": lambda random: random.choice([0.5, 5, 30, 90]) * (0.5 + random.random()),
    "upgrade": lambda random: 0.0,
    "fill_disk": lambda random: random.choice([1, 10, 30]) * (0.5 + random.random()),
    "set_clock": lambda random: random.choice([-5.0, -0.5, 0.5, 5.0]),
    "drift_clock": lambda random: random.choice([-0.05, -0.001, 0.001, 0.05]),
    "block": lambda random: random.choice([0.5, 5, 20, 60]) * (0.5 + random.random()),
    "log_unavailable": lambda random: random.choice([1, 10, 45]) * (0.5 + random.random()),
    "log_cut_off": lambda random: random.choice([1, 10, 45]) * (0.5 + random.random()),
    "log_half_cut_off": lambda random: random.choice([1, 10, 25]) * (0.5 + random.random()),
    "log_faults": lambda random: random.choice([1, 5, 20]) * (0.5 + random.random()),
    "resets": lambda random: random.choice([1, 5, 20]) * (0.5 + random.random()),
}
_OWNER_AMOUNTS: Mapping[str, Callable[[Random], float]] = {
    **_AMOUNTS,
    "pause": lambda random: random.choice([1, 2, 3, 10]) * (0.5 + random.random()),
    "log_cut_off": lambda random: random.choice([1, 2, 3, 10]) * (0.5 + random.random()),
    "restart": lambda random: random.choice([1, 60]),
    "slow_reads": lambda random: random.choice([5, 15]) * (0.5 + random.random()),
}
