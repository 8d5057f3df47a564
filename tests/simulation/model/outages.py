"""The outages of a world: intervals in which something was broken, and late work is no finding."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from tests.simulation.kernel.clock import START_MS
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import shard_of

_TAKES_TIME = frozenset(
    {
        *("pause", "block", "log_unavailable", "log_cut_off", "log_half_cut_off", "log_faults"),
        *("rebuild", "slow_reads", "resets", "fill_disk"),
    }
)
"""Kinds of faults whose amount is the seconds that they last."""

_OF_SEVERAL = frozenset({"block", "log_unavailable", "log_faults", "resets"})
"""The kinds among _TAKES_TIME that concern other hosts than their target too."""

_CHANGES_TIMES = frozenset({"set_clock", "drift_clock"})


TAKEOVER_S = 5.0
"""How long a shard with a standby may have no owner after its owner has failed."""


_START_S = 0.1
"""Outages that begin earlier are those of hosts that have not been started yet."""

_STARTED_S = 1.0
"""How long the first start of a host that is not killed takes at most, and for how long calls may fail after it."""


class Outage(NamedTuple):
    """An interval, in seconds of the world, in which something was broken; `host` is "" where it concerns several."""

    begun_s: float
    ended_s: float
    host: str = ""


class Outages:
    """All outages of a world. Each counts for `tail_s` longer: so long the roles may take to come back to speed.

    While only one of a shard's two processes is out, its standby takes over, and the outage ends after TAKEOVER_S.
    `tells_time`: the times in the log are those of the world, because no clock was set.
    """

    def __init__(self, hosts: Sequence[RoleHost], faults: Sequence[Fault], tail_s: float) -> None:
        """`faults`: with the times at which they happened."""
        found = [Outage(*outage, host.name) for host in hosts for outage in host.outages]
        found += [
            Outage(fault.at_s, fault.at_s + fault.amount, "" if fault.kind in _OF_SEVERAL else fault.target)
            for fault in faults
            if fault.kind in _TAKES_TIME
        ]
        names = {host.name for host in hosts}
        found = [_until_taken_over(outage, _partner(outage.host, names), found, tail_s) for outage in found]
        self._found = found
        self._outages = sorted(outage._replace(ended_s=outage.ended_s + tail_s) for outage in found)
        self._tail_s = tail_s
        self.tells_time = all(fault.kind not in _CHANGES_TIMES for fault in faults)

    def calm_ms(self, begun_ms: int, ended_ms: int, without: Collection[str] = ()) -> int:
        """Return for how long nothing was broken between two times; outages of the hosts `without` do not count."""
        at_s, end_s = (begun_ms - START_MS) / 1000, (ended_ms - START_MS) / 1000
        calm_s = 0.0
        for outage in self._outages:
            if not outage.host or outage.host not in without:
                calm_s += max(0.0, min(outage.begun_s, end_s) - at_s)
                at_s = max(at_s, outage.ended_s)
        return round((calm_s + max(0.0, end_s - at_s)) * 1000)

    def is_calm(self, begun_ms: int, ended_ms: int) -> bool:
        """Return whether nothing was broken at any time between these two, nor lately.

        At the start of the world all roles are up to speed _STARTED_S after they are ready.
        """
        at_s, end_s = (begun_ms - START_MS) / 1000, (ended_ms - START_MS) / 1000
        return all(end_s < outage.begun_s or outage.ended_s + self._tail_after(outage) < at_s for outage in self._found)

    def _tail_after(self, outage: Outage) -> float:
        is_start = outage.begun_s < _START_S and outage.ended_s < _STARTED_S
        return _STARTED_S if is_start else self._tail_s


def _partner(name: str, names: Collection[str]) -> str:
    """Return the name of the other process of the host's shard; "" where it has none."""
    return next((other for other in names if other != name and shard_of(other) == shard_of(name)), "")


def _until_taken_over(outage: Outage, partner: str, outages: Sequence[Outage], tail_s: float) -> Outage:
    """Return the outage up to the moment at which the partner has taken over, if nothing else was broken then.

    The start of the world, which is an outage too, breaks nothing.
    """
    begun_s, until_s = outage.begun_s, outage.begun_s + TAKEOVER_S
    others = [other for other in outages if other.begun_s > _START_S and other.host in ("", partner)]
    if not partner or any(other.begun_s < until_s and begun_s < other.ended_s + tail_s for other in others):
        return outage
    return outage._replace(ended_s=min(outage.ended_s, until_s))
