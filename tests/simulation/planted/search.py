"""Looks for the first seed whose world finds a planted bug."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tests.simulation.backends.world import Backends
from tests.simulation.kernel.running import Kind, Outcome, run_world, run_worlds, warm_up
from tests.simulation.planted.bug import PlantedBug
from tests.simulation.planted.edit import Edit, planted
from tests.simulation.world.hand_overs import HandOverWorld
from tests.simulation.world.run import InstallationWorld

KINDS: Mapping[str, Kind] = {
    "backends": Backends(),
    "hand-overs": HandOverWorld(),
    "installation": InstallationWorld(),
}
_AHEAD = 4
"""Worlds that are begun for each process before the results of the earlier ones are looked at."""


class Search(NamedTuple):
    """The result of the search for a bug. `seed` None: no world found it. `found_by`: the rule that was broken."""

    bug: PlantedBug
    seed: int | None
    found_by: str
    finding: str
    worlds: int
    cpu_s: float


def search(
    bug: PlantedBug, seeds: Sequence[int], processes: int = 1, on_world: Callable[[], object] = lambda: None
) -> Search:
    """Run the worlds of these seeds with the bug, in order, until one finds it.

    A finding that the seed has without the bug too does not count. TargetChangedError: the bug cannot be planted.
    """
    with planted(bug.edits):
        pass
    kind = KINDS[bug.kind]
    warm_up(kind)
    worlds, cpu_s = 0, 0.0
    for first in range(0, len(seeds), processes * _AHEAD):
        some = seeds[first : first + processes * _AHEAD]
        outcomes = []
        for outcome in run_worlds([partial(run_planted, kind, seed, bug.edits) for seed in some], processes):
            outcomes.append(outcome)
            on_world()
        for outcome in sorted(outcomes, key=lambda each: each.seed):
            worlds, cpu_s = worlds + 1, cpu_s + outcome.cpu_s
            if outcome.findings and not _findings_without(kind, outcome.seed):
                finding = outcome.findings[0]
                return Search(bug, outcome.seed, finding.partition(":")[0], finding, worlds, cpu_s)
    return Search(bug, None, "", "", worlds, cpu_s)


def run_planted(kind: Kind, seed: int, edits: Sequence[Edit]) -> Outcome:
    with planted(edits):
        return run_world(kind, seed)


def _findings_without(kind: Kind, seed: int) -> Sequence[str]:
    """Return the findings of the seed's world without the bug."""
    (outcome,) = run_worlds([partial(run_world, kind, seed)])
    return outcome.findings
