"""Lists of faults, chosen by a random generator: all kinds, a few kinds, or those after which owners change."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from random import Random

from services.runtime.process.crashpoint import Point
from tests.simulation.kernel.faults import Fault, needs_archive
from tests.simulation.kernel.log.losses import CHANGED, CUT_OFF, MISSING

_ONE_TARGET = 0.3
"""Share of the lists of faults that have one target."""

_BRIEF_S = 8.0
"""How long a fault of a brief world lasts at most."""

_LONGER = 20
"""How many times longer a fault of a long world lasts than in others."""

_LASTING = frozenset(
    {
        *("down", "pause", "block", "log_unavailable", "log_cut_off", "log_half_cut_off", "log_faults", "resets"),
        *("fill_disk", "slow_reads", "pause_app", "store_away", "store_fails"),
    }
)
"""Kinds of faults whose amount is the seconds that they last."""

_OF_STEPS = frozenset({"kill_after_steps"})
"""Kinds of faults whose amount is a number of steps."""

_TWO_ARCHIVERS = 0.5
"""Share of the worlds with an archive in which two processes move records there at once."""

_LOSING = 0.08
"""Share of the worlds with faults in which records of the log or of its archive are lost for a while."""

_OF_PART = 0.5
"""Share of the hosts that a split network keeps from a part of the log."""


def swarm_faults(
    random: Random, hosts: Sequence[str], count: int, until_s: float, without: Collection[str] = ()
) -> list[Fault]:
    """Return a random list of faults, in the order of their times; `without`: kinds that it must not have.

    Most lists have few kinds of faults, and some have one target: such worlds find what others hide, because a fault
    of one kind often keeps the next one from reaching far (swarm testing: Groce and others, 2012).
    """
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if kind not in without}
    chosen = random.sample(list(weights), min(len(weights), random.choice((1, 2, 4, len(weights)))))
    targets = [random.choice(hosts)] if random.random() < _ONE_TARGET else hosts
    kinds = {kind: weights[kind] for kind in chosen}
    faults = [_random_fault(random, targets, hosts, kinds, until_s) for _ in range(count)]
    return sorted(faults, key=lambda fault: fault.at_s)


def _random_fault(
    random: Random, targets: Sequence[str], hosts: Sequence[str], kinds: Mapping[str, int], until_s: float
) -> Fault:
    at_s, target, other = random.uniform(0, until_s), random.choice(targets), random.choice(hosts)
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    amount = _AMOUNTS[kind](random) if kind in _AMOUNTS else 0.0
    match kind:
        case "block":
            return Fault(at_s, kind, target, amount, other)
        case "kill_at_point":
            return Fault(at_s, kind, target, amount, _point(random, target))
        case "log_half_cut_off":
            return Fault(at_s, kind, target, amount, _half(random))
        case _:
            return Fault(at_s, kind, target, amount)


def brief_faults(random: Random, hosts: Sequence[str], until_s: float, without: Collection[str] = ()) -> list[Fault]:
    """Return a random list of a few faults of one or two kinds, in the order of their times; none lasts long."""
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if kind not in without}
    kinds = {kind: weights[kind] for kind in random.sample(list(weights), random.choice((1, 2)))}
    count = random.choice((1, 1, 2, 3))
    return sorted(
        (shortened(_random_fault(random, hosts, hosts, kinds, until_s)) for _ in range(count)),
        key=lambda fault: fault.at_s,
    )


def shortened(fault: Fault) -> Fault:
    """Return the fault, which lasts no longer than in a brief world."""
    return fault if fault.kind in _OF_STEPS else replace(fault, amount=min(fault.amount, _BRIEF_S))


def lengthened(fault: Fault, longer: float) -> Fault:
    """Return the fault as in a world that lasts `longer` times longer: minutes instead of seconds.

    A clock drifts more slowly there, so that it becomes no more wrong than in other worlds.
    """
    if fault.kind == "drift_clock":
        return replace(fault, amount=fault.amount / longer)
    return replace(fault, amount=fault.amount * _LONGER) if fault.kind in _LASTING else fault


def rare_faults(random: Random, hosts: Sequence[str], count: int, until_s: float) -> list[Fault]:
    """Return a random list of faults of further kinds, in the order of their times."""
    return sorted(
        (
            Fault(
                random.uniform(0, until_s), kind := random.choice(_RARE), random.choice(hosts), _AMOUNTS[kind](random)
            )
            for _ in range(count)
        ),
        key=lambda fault: fault.at_s,
    )


def owner_faults(random: Random, hosts: Sequence[str], count: int, until_s: float) -> list[Fault]:
    """Return a random list of faults of these hosts after which others own their shards, in the order of their times.

    A pause or a partition is about as long as a standby needs to take over, so that former owners come back then.
    """
    kinds = random.sample(list(_OWNER_WEIGHTS), random.choice((1, 2, len(_OWNER_WEIGHTS))))
    chosen = {kind: _OWNER_WEIGHTS[kind] for kind in kinds}
    return sorted((_owner_fault(random, hosts, chosen, until_s) for _ in range(count)), key=lambda fault: fault.at_s)


def split_faults(random: Random, hosts: Sequence[str], until_s: float) -> list[Fault]:
    """Return faults that cut some of the hosts off from the same half of the log's partitions, at the same time.

    So it is where one of the servers that hold the log is reached by a part of the network only.
    """
    at_s, lasts_s = random.uniform(0, until_s), random.choice([3, 10, 20]) * (0.5 + random.random())
    half = _half(random)
    return [Fault(at_s, "log_half_cut_off", host, lasts_s, half) for host in hosts if random.random() < _OF_PART]


def archive_faults(random: Random, hosts: Sequence[str], until_s: float) -> list[Fault]:
    """Return faults that archive old records several times; a host that then loses its files needs the archive."""
    faults = [
        Fault(
            random.uniform(0.4, 1) * until_s, "archive", "", random.choice((0.2, 1, 4)), random.choice(_ARCHIVER_POINTS)
        )
        for _ in range(random.randint(1, 4))
    ]
    rebuilt = Fault(random.uniform(0.5, 1) * until_s, random.choice(("lose_disk", "upgrade")), random.choice(hosts))
    chosen = [*faults, *random.choice(((), (rebuilt,)))]
    if random.random() < _TWO_ARCHIVERS:
        chosen.append(Fault(random.uniform(0.4, 1) * until_s, "archive_twice", "", random.choice((0.2, 1, 4))))
    return chosen


def is_losing(seed: int) -> bool:
    """Return whether records cannot be read for a while in the world of this seed."""
    return Random(f"{seed}/is losing").random() < _LOSING


def loss_faults(random: Random, faults: Sequence[Fault], hosts: Sequence[str], until_s: float) -> list[Fault]:
    """Return faults that lose records and hosts that then need them: of the archive where these faults fill one, else
    of the log."""
    at_s, lasts_s = random.uniform(0.5, 1) * until_s, random.choice((2, 6, 12))
    lost = Fault(at_s, "log_trimmed", "", lasts_s)
    if needs_archive(faults):
        lost = Fault(at_s, "archive_damaged", "", lasts_s, random.choice((MISSING, CUT_OFF, CHANGED)))
    needing = random.sample(hosts, min(len(hosts), random.choice((1, 2))))
    kinds = ("lose_disk", "lose_disk", "kill")
    return [lost, *(Fault(at_s + random.random(), random.choice(kinds), host) for host in needing)]


def _half(random: Random) -> str:
    """Return a name for half of the log's partitions."""
    return str(random.randrange(1000))


def _owner_fault(random: Random, hosts: Sequence[str], kinds: Mapping[str, int], until_s: float) -> Fault:
    at_s, target = random.uniform(0, until_s), random.choice(hosts)
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    amount = _OWNER_AMOUNTS[kind](random) if kind in _OWNER_AMOUNTS else 0.0
    other = _point(random, target) if kind == "kill_at_point" else _half(random) if kind == "slow_reads" else ""
    return Fault(at_s, kind, target, amount, other)


def _point(random: Random, target: str) -> str:
    """Return one of the crash points that the role can reach."""
    prefixes = _POINTS.get(target.partition("-")[0], ("",))
    return str(random.choice([point for point in Point if point.startswith(prefixes)]))


_POINTS: Mapping[str, tuple[str, ...]] = {
    "registry": ("follower", "command"),
    "targeting": ("follower", "snapshot"),
    "scheduling": ("follower", "task", "command"),
    "delivery": ("push", "cancel", "expiry", "outcomes", "snapshot"),
    "gateway": ("sessions", "reports"),
    "edge": ("command",),
    "analytics": ("range",),
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
_ARCHIVER_POINTS = (*[""] * 6, *(point for point in Point if point.startswith("segment") and "partly" not in point))
_RARE = ("fill_disk", "upgrade", "set_clock", "drift_clock")
_AMOUNTS: Mapping[str, Callable[[Random], float]] = {
    "kill_after_steps": lambda random: float(random.randrange(3000)),
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
