"""Worlds with analytics: its ingestion tolerates kills and a failing store, and one that does not is found."""

from functools import partial

import pytest

from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.running import Outcome, run_world, run_worlds
from tests.simulation.planted.analytics_bugs import ANALYTICS_BUGS
from tests.simulation.planted.bug import PlantedBug
from tests.simulation.planted.edit import planted
from tests.simulation.world.plan import EVERY_ROLE, Plan
from tests.simulation.world.run import InstallationWorld

WORLD = InstallationWorld(
    Plan(
        partitions=2,
        processes=dict.fromkeys(EVERY_ROLE, 1),
        devices=3,
        rate=2.0,
        load_s=20.0,
        snapshot_s=300,
        has_ios=False,
    )
)
FAULTS = [
    Fault(1, "store_fails", amount=2),
    Fault(1.5, "kill_at_point", "analytics-0", other="range-noted"),
    Fault(8, "store_away", amount=3),
    Fault(9.5, "kill", "analytics-0"),
    Fault(13, "kill_at_point", "analytics-0", other="range-inserted"),
    Fault(17, "cut_power", "analytics-0"),
]


def outcome(bug: PlantedBug | None = None) -> Outcome:
    with planted(bug.edits if bug else ()):
        (found,) = run_worlds([partial(run_world, WORLD, 1, FAULTS)])
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_fact_is_stored_once_whatever_happens_to_the_process_and_its_store() -> None:
    bearing = outcome()
    assert bearing.findings == []
    assert bearing.counts["crash"] == 2


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", ANALYTICS_BUGS, ids=[bug.name for bug in ANALYTICS_BUGS])
def test_rows_that_are_lost_or_stored_twice_are_found(bug: PlantedBug) -> None:
    assert any(finding.startswith("analytics: ") for finding in outcome(bug).findings)
