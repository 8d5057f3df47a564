"""Planned restarts of every process in order: no request fails or takes over a second, nothing is lost or doubled."""

import pytest

from tests.simulation.restarts.world import restarts


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, pytest.param(1, marks=pytest.mark.seeds)])
def test_nobody_notices_that_every_process_restarts(seed: int) -> None:
    outcome = restarts(devices=60, rate=50.0, pause_s=3.5, seed=seed)
    assert outcome.findings == []
    assert outcome.counts["fault"] == len(outcome.faults) == 13
    assert outcome.counts["process"] == 2 * len(outcome.faults)
