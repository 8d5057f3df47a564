"""Worlds whose messages are handed over to a push service: they find nothing, and find planted bugs within a few."""

from functools import partial

import pytest

from tests.simulation.kernel.running import run_world, run_worlds
from tests.simulation.planted.bug import PlantedBug
from tests.simulation.planted.hand_over_bugs import HAND_OVER_BUGS
from tests.simulation.planted.search import run_planted
from tests.simulation.world.hand_overs import HandOverWorld

WORLDS = 4
WITHIN = 8
"""Worlds in which each bug is found."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_hand_overs_with_trouble_and_kills_show_each_message_once() -> None:
    ran = list(run_worlds([partial(run_world, HandOverWorld(), seed) for seed in range(WORLDS)]))
    assert [outcome.findings for outcome in ran] == [[]] * WORLDS
    assert sum(outcome.counts["shown by a channel"] for outcome in ran) > 25 * WORLDS  # one world may have few
    for outcome in ran:
        assert outcome.counts["shown by a channel"] > 0
        assert outcome.effects["push_service_trouble"] > 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", HAND_OVER_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_of_hand_overs_is_found_within_a_few_worlds(bug: PlantedBug) -> None:
    jobs = (partial(run_planted, HandOverWorld(), seed, bug.edits) for seed in range(WITHIN))
    assert any(outcome.findings for job in jobs for outcome in run_worlds([job]))
