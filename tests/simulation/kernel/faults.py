"""Faults: what goes wrong in a world, when, and where. `fault_lists.py` makes lists of them."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial

from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import Installation
from tests.simulation.kernel.log.archiving import ARCHIVER, Archiving
from tests.simulation.kernel.log.losses import KINDS, Losses

_MILLISECONDS = 1000
_SLOW_READ_S, _SLOW_HALF_READ_S = 0.5, 1.5

_NOT_HEALED = frozenset({"down", "pause", "block", "run_second", "stop_reading", *KINDS})
"""Kinds of faults that `heal` does not end, whose amount is the seconds that they last."""

_OF_PROCESSES = frozenset({"kill", "cut_power", "lose_disk", "upgrade", "down", "restart", "pause"})
"""Kinds of faults that have no effect while the target has no process."""

_NOTED_LATER = frozenset(
    {"kill_after_steps", "kill_at_point", "kill_at_append", "archive", "archive_twice", "cut_all_power", *KINDS}
)
"""Kinds of faults whose own methods note whether, or when, they take effect."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `amount` is in seconds, steps or a rate, as the method of its kind in Faults says."""

    at_s: float
    kind: str
    target: str = ""
    amount: float = 0.0
    other: str = ""


def needs_archive(faults: Iterable[Fault]) -> bool:
    """Return whether records are archived in a world with these faults."""
    return any(fault.kind in ("archive", "archive_twice") for fault in faults)


def end_s(fault: Fault, healed_s: float) -> float:
    """Return when a fault ends that lasts `amount` seconds: most at `healed_s` at the latest, when all are healed."""
    own_end_s = fault.at_s + fault.amount
    return own_end_s if fault.kind in _NOT_HEALED else min(own_end_s, healed_s)


def latest_end_s(faults: Iterable[Fault]) -> float:
    """Return when the last fault ends of those that `Faults.heal` does not end."""
    return max((fault.at_s + fault.amount for fault in faults if fault.kind in _NOT_HEALED), default=0.0)


class Faults:
    """Injects faults into an installation. Each public method but `inject` and `heal` is a kind of fault.

    Those that take effect are counted in the world's `effects`. A fault that waits for something, such as a crash
    point, has none where `heal` takes it back.
    """

    def __init__(self, installation: Installation, hosts: Sequence[RoleHost]) -> None:
        self._installation = installation
        self._world = installation.world
        self._hosts = {host.name: host for host in hosts}
        self._behaviour = installation.broker.behaviour
        self._archiving = Archiving(installation)
        self._archiving_too = Archiving(installation, f"{ARCHIVER}-2", 500)
        self._losses = Losses(installation.archive_path, installation.broker, installation.world.random("losses"))
        self._is_over = False
        self._noted: set[Fault] = set()
        self.injected: Sequence[Fault] = ()
        self.healed_s = float("inf")

    def inject(self, faults: Sequence[Fault]) -> None:
        """Let each fault happen at its time."""
        self.injected = faults
        for fault in faults:
            self._world.loop.call_at(fault.at_s, self._inject, fault, context=Context())

    def heal(self) -> None:
        """End the faults that last, and let none happen any more; `latest_end_s` tells when the others end."""
        self._is_over, self.healed_s = True, self._world.loop.time()
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
        self._hosts[fault.target].process.kill_after(1 + int(fault.amount), partial(self._note, fault))

    def kill_at_point(self, fault: Fault) -> None:
        """Kill the target when it next reaches the crash point `other`."""
        self._world.crash_at(fault.other, fault.target, then=partial(self._note, fault))

    def kill_at_append(self, fault: Fault) -> None:
        """Kill the target at its next append: once the records are stored where `amount` is 1, else before that."""
        then = partial(self._note, fault)
        self._installation.broker.kill_at_append(fault.target, is_stored=bool(fault.amount), then=then)

    def cut_power(self, fault: Fault) -> None:
        self._hosts[fault.target].cut_power()

    def cut_all_power(self, fault: Fault) -> None:
        """Cut the power of all hosts at once, as where one machine runs all roles; the log goes on."""
        if any(host.process.is_alive for host in self._hosts.values()):
            self._note(fault)
        for host in self._hosts.values():
            host.cut_power()

    def lose_disk(self, fault: Fault) -> None:
        self._hosts[fault.target].lose_disk()

    def fill_disk(self, fault: Fault) -> None:
        """Let the target write no file for `amount` seconds."""
        host = self._hosts[fault.target]
        host.fill_disk()
        self._later(fault.amount, lambda: setattr(host, "is_disk_full", False))

    def rebuild(self, fault: Fault) -> None:
        """Lose the files of the target; its next process reads the log slowly, for `amount` seconds."""
        self.slow_reads(fault)
        self._hosts[fault.target].lose_disk()

    def slow_reads(self, fault: Fault) -> None:
        """Let the target's processes read the log, or the half that `other` names, slowly for `amount` seconds."""
        broker = self._installation.broker
        broker.slow_down(fault.target, _SLOW_HALF_READ_S if fault.other else _SLOW_READ_S, fault.other)
        self._later(fault.amount, lambda: broker.speed_up(fault.target))

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

    def log_half_cut_off(self, fault: Fault) -> None:
        """Let the log answer nothing that the target asks about half of its partitions, which `other` chooses."""
        broker = self._installation.broker
        broker.cut_half_off(fault.target, fault.other)
        self._later(fault.amount, lambda: broker.reach_again(fault.target))

    def log_faults(self, fault: Fault) -> None:
        """Let half of the requests to append and to read fail for `amount` seconds."""
        self._behaviour.fault_rate = 0.5
        self._later(fault.amount, lambda: setattr(self._behaviour, "fault_rate", 0.0))

    def archive(self, fault: Fault) -> None:
        """Move records older than `amount` seconds out of the log into the archive.

        The process that does so is killed at the crash point `other`, where one is given.
        """
        if fault.other:
            self._world.crash_at(fault.other, ARCHIVER, then=partial(self._note, fault))
        self._archiving.start(fault.amount, partial(self._note, fault))

    def archive_twice(self, fault: Fault) -> None:
        """Let two processes move old records at once, of which the second one leaves some more to the log."""
        self._archiving.start(fault.amount, partial(self._note, fault))
        self._archiving_too.start(2 * fault.amount, partial(self._note, fault))

    def archive_damaged(self, fault: Fault) -> None:
        """Lose or damage files of the archive, as `other` says, for `amount` seconds."""
        if self._losses.damage_archive(fault.other):
            self._note(fault)
        self._later(fault.amount, self._losses.bring_back)

    def log_trimmed(self, fault: Fault) -> None:
        """Remove the first records of the log, as retention without an archive does, for `amount` seconds."""
        if self._losses.trim_log():
            self._note(fault)
        self._later(fault.amount, self._losses.bring_back)

    def resets(self, fault: Fault) -> None:
        """Let a fifth of the messages and calls between processes break their connections, for `amount` seconds."""
        network = self._installation.network
        network.reset_rate = 0.2
        self._later(fault.amount, lambda: setattr(network, "reset_rate", 0.0))

    def _inject(self, fault: Fault) -> None:
        if not self._is_over:
            self._world.trace.event(
                "fault", kind=fault.kind, target=fault.target, amount=fault.amount, other=fault.other
            )
            is_late = fault.kind in _OF_PROCESSES and not self._hosts[fault.target].process.is_alive
            getattr(self, fault.kind)(fault)
            if not is_late and fault.kind not in _NOTED_LATER:
                self._note(fault)

    def _note(self, fault: Fault) -> None:
        """Count a fault that takes effect, once."""
        if fault not in self._noted:
            self._noted.add(fault)
            self._world.effects[fault.kind] += 1

    def _later(self, seconds: float, callback: Callable[[], object]) -> None:
        self._world.loop.call_later(seconds, callback, context=Context())
