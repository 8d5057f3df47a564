"""Lists of faults of old records: they go to the archive, and some are lost there or in the log for a while."""

from collections.abc import Sequence
from random import Random

from services.process.crashpoint import Point
from tests.simulation.kernel.fault_lists import Setting, with_files
from tests.simulation.kernel.faults import Fault, needs_archive
from tests.simulation.kernel.log.losses import CHANGED, CUT_OFF, MISSING

_TWO_ARCHIVERS = 0.5
"""Share of the worlds with an archive in which two processes move records there at once."""

_LOSING = 0.08
"""Share of the worlds with faults in which records of the log or of its archive are lost for a while."""

_AGES_S = (0.2, 1, 4)
"""How old records are, at least, when they are archived."""

_ARCHIVER_POINTS = (*[""] * 6, *(point for point in Point if point.startswith("segment") and "partly" not in point))


def archive_faults(random: Random, plan: Setting) -> list[Fault]:
    """Return faults that archive old records several times; a host that then loses its files needs the archive."""
    faults = [
        _archive_fault(random, plan, "archive", random.choice(_ARCHIVER_POINTS)) for _ in range(random.randint(1, 4))
    ]
    kind, host = random.choice(("lose_disk", "upgrade")), random.choice(with_files(plan))
    rebuilt = Fault(random.uniform(0.5, 1) * plan.load_s, kind, host)
    chosen = [*faults, *random.choice(((), (rebuilt,)))]
    if random.random() < _TWO_ARCHIVERS:
        chosen.append(_archive_fault(random, plan, "archive_twice"))
    return chosen


def _archive_fault(random: Random, plan: Setting, kind: str, point: str = "") -> Fault:
    """Return a fault that archives records; there are some that are old enough for each of its processes."""
    at_s = random.uniform(0.4, 1) * plan.load_s
    oldest_s = at_s / 2 if kind == "archive_twice" else at_s
    return Fault(at_s, kind, "", random.choice([age_s for age_s in _AGES_S if age_s <= oldest_s]), point)


def is_losing(seed: int) -> bool:
    """Return whether records cannot be read for a while in the world of this seed."""
    return Random(f"{seed}/is losing").random() < _LOSING


def loss_faults(random: Random, plan: Setting, faults: Sequence[Fault]) -> list[Fault]:
    """Return faults that lose records, of the archive where `faults` fill one, else of the log, and faults of hosts
    that need them: they lose their files shortly before, and start 1 to 3 s later. Targeting needs none of them."""
    at_s, lasts_s = random.uniform(0.5, 1) * plan.load_s, random.choice((3, 6, 12))
    lost = [Fault(at_s, "log_trimmed", "", lasts_s)]
    if needs_archive(faults):
        at_s = random.uniform(0.8, 1) * plan.load_s
        how = random.choice((MISSING, CUT_OFF, CHANGED))
        filled = Fault(0.4 * plan.load_s, "archive", "", _AGES_S[0])
        lost = [filled, Fault(at_s, "archive_damaged", "", lasts_s, how)]
    hosts = [host for host in with_files(plan) if not host.startswith("targeting")]
    first, *others = random.sample(hosts, min(len(hosts), random.choice((1, 2))))
    needing = [("lose_disk", first), *((random.choice(("lose_disk", "kill")), host) for host in others)]
    return [*lost, *(Fault(max(0.0, at_s - random.random()), kind, host) for kind, host in needing)]
