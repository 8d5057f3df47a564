"""Faults: what goes wrong in a world, when, and where. The seed makes a list of them, which can be shortened."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from random import Random

from services.runtime.process.crashpoint import Point
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import Installation

_MILLISECONDS = 1000
_SLOW_READ_S = 0.5
_ONE_TARGET = 0.3
"""Share of the lists of faults that have one target."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `amount` is in seconds, steps or a rate, as the method of its kind in Faults says."""

    at_s: float
    kind: str
    target: str = ""
    amount: float = 0.0
    other: str = ""


class Faults:
    """Injects faults into an installation. Each public method but `inject` and `heal` is a kind of fault."""

    def __init__(self, installation: Installation, hosts: Sequence[RoleHost]) -> None:
        self._installation = installation
        self._world = installation.world
        self._hosts = {host.name: host for host in hosts}
        self._behaviour = installation.broker.behaviour
        self._is_over = False

    def inject(self, faults: Sequence[Fault]) -> None:
        """Let each fault happen at its time."""
        for fault in faults:
            self._world.loop.call_at(fault.at_s, self._inject, fault, context=Context())

    def heal(self) -> None:
        """End the faults that last, and let none happen any more."""
        self._is_over = True
        self._world.spare()
        for host in self._hosts.values():
            host.process.spare()
            host.is_disk_full = False
            host.clock.drift(0)
        self._installation.broker.spare()
        self._installation.broker.set_available(True)
        self._installation.broker.reach_again()
        self._behaviour.fault_rate = self._installation.network.reset_rate = 0.0

    def kill(self, fault: Fault) -> None:
        """Kill the target."""
        self._hosts[fault.target].kill()

    def kill_after_steps(self, fault: Fault) -> None:
        """Kill the target between two of its callbacks, after `amount` further ones: at any of its awaits."""
        self._hosts[fault.target].process.kill_after(1 + int(fault.amount))

    def kill_at_point(self, fault: Fault) -> None:
        """Kill the target when it next reaches the crash point `other`."""
        self._world.crash_at(fault.other, fault.target)

    def kill_at_append(self, fault: Fault) -> None:
        """Kill the target at its next append: once the records are stored where `amount` is 1, else before that."""
        self._installation.broker.kill_at_append(fault.target, is_stored=bool(fault.amount))

    def cut_power(self, fault: Fault) -> None:
        self._hosts[fault.target].cut_power()

    def lose_disk(self, fault: Fault) -> None:
        self._hosts[fault.target].lose_disk()

    def fill_disk(self, fault: Fault) -> None:
        """Let the target write no file for `amount` seconds."""
        host = self._hosts[fault.target]
        host.is_disk_full = True
        self._later(fault.amount, lambda: setattr(host, "is_disk_full", False))

    def rebuild(self, fault: Fault) -> None:
        """Lose the files of the target; its next process reads the log slowly, for `amount` seconds."""
        self.slow_reads(fault)
        self._hosts[fault.target].lose_disk()

    def slow_reads(self, fault: Fault) -> None:
        """Let the target's processes read the log slowly for `amount` seconds."""
        broker = self._installation.broker
        broker.slow_down(fault.target, _SLOW_READ_S)
        self._later(fault.amount, lambda: broker.slow_down(fault.target, 0))

    def upgrade(self, fault: Fault) -> None:
        """Kill the target, and go on with a version whose files have other schemas."""
        self._hosts[fault.target].upgrade()

    def run_second(self, fault: Fault) -> None:
        """Run the target's instance twice for `amount` seconds, each with its own files."""
        self._hosts[fault.target].run_second(fault.amount)

    def down(self, fault: Fault) -> None:
        """Kill the target, and start it again after `amount` seconds."""
        self._hosts[fault.target].stay_down(fault.amount)

    def restart(self, fault: Fault) -> None:
        """Stop the target, within `amount` seconds, and start it again."""
        self._hosts[fault.target].restart(fault.amount)

    def pause(self, fault: Fault) -> None:
        """Suspend the target for `amount` seconds."""
        self._hosts[fault.target].process.pause(fault.amount)

    def set_clock(self, fault: Fault) -> None:
        """Set the target's clock forward by `amount` seconds, or back where it is negative."""
        self._hosts[fault.target].clock.set_by(int(fault.amount * _MILLISECONDS))

    def drift_clock(self, fault: Fault) -> None:
        """Let the target's clock gain `amount` seconds in each second from now on, or lose them."""
        self._hosts[fault.target].clock.drift(fault.amount)

    def block(self, fault: Fault) -> None:
        """Hold back what the target sends to `other` for `amount` seconds."""
        self._installation.network.block(fault.target, fault.other, fault.amount)

    def log_unavailable(self, fault: Fault) -> None:
        """Let the log answer nobody for `amount` seconds."""
        broker = self._installation.broker
        broker.set_available(False)
        self._later(fault.amount, lambda: broker.set_available(True))

    def log_cut_off(self, fault: Fault) -> None:
        """Let the log answer nothing that the target asks for `amount` seconds."""
        broker = self._installation.broker
        broker.cut_off(fault.target)
        self._later(fault.amount, lambda: broker.reach_again(fault.target))

    def log_faults(self, fault: Fault) -> None:
        """Let half of the requests to append and to read fail for `amount` seconds."""
        self._behaviour.fault_rate = 0.5
        self._later(fault.amount, lambda: setattr(self._behaviour, "fault_rate", 0.0))

    def resets(self, fault: Fault) -> None:
        """Let a fifth of the connections break for `amount` seconds."""
        network = self._installation.network
        network.reset_rate = 0.2
        self._later(fault.amount, lambda: setattr(network, "reset_rate", 0.0))

    def _inject(self, fault: Fault) -> None:
        if not self._is_over:
            self._world.trace.event(
                "fault", kind=fault.kind, target=fault.target, amount=fault.amount, other=fault.other
            )
            getattr(self, fault.kind)(fault)

    def _later(self, seconds: float, callback: Callable[[], object]) -> None:
        self._world.loop.call_later(seconds, callback, context=Context())


def random_faults(random: Random, hosts: Sequence[str], count: int, until_s: float) -> list[Fault]:
    """Return a random list of faults of all kinds, in the order of their times."""
    faults = [_random_fault(random, hosts, hosts, _WEIGHTS, until_s) for _ in range(count)]
    return sorted(faults, key=lambda fault: fault.at_s)


def swarm_faults(
    random: Random, hosts: Sequence[str], count: int, until_s: float, without: Collection[str] = ()
) -> list[Fault]:
    """Return a random list of faults, in the order of their times; `without`: kinds that it must not have.

    Most lists have few kinds of faults, and some have one target: such worlds find what others hide, because a fault
    of one kind often keeps the next one from reaching far (swarm testing: Groce and others, 2012).
    """
    weights = {kind: weight for kind, weight in {**_WEIGHTS, **_SWARM_WEIGHTS}.items() if kind not in without}
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
    if kind == "kill_at_point":
        other = _point(random, target)
    return Fault(at_s, kind, target, amount, other if kind in ("block", "kill_at_point") else "")


def rare_faults(random: Random, hosts: Sequence[str], count: int, until_s: float) -> list[Fault]:
    """Return a random list of faults of further kinds, as `random_faults` does."""
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


def _owner_fault(random: Random, hosts: Sequence[str], kinds: Mapping[str, int], until_s: float) -> Fault:
    at_s, target = random.uniform(0, until_s), random.choice(hosts)
    kind = random.choices(list(kinds), list(kinds.values()))[0]
    amount = _OWNER_AMOUNTS[kind](random) if kind in _OWNER_AMOUNTS else 0.0
    return Fault(at_s, kind, target, amount, _point(random, target) if kind == "kill_at_point" else "")


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
}
_SWARM_WEIGHTS: Mapping[str, int] = {"kill_at_append": 6, "down": 2}
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
}
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
    "log_faults": lambda random: random.choice([1, 5, 20]) * (0.5 + random.random()),
    "resets": lambda random: random.choice([1, 5, 20]) * (0.5 + random.random()),
}
_OWNER_AMOUNTS: Mapping[str, Callable[[Random], float]] = {
    **_AMOUNTS,
    "pause": lambda random: random.choice([1, 2, 3, 10]) * (0.5 + random.random()),
    "log_cut_off": lambda random: random.choice([1, 2, 3, 10]) * (0.5 + random.random()),
    "restart": lambda random: random.choice([1, 60]),
}
