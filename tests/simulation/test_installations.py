"""Worlds of an installation with its clients find nothing, and give one trace for each seed."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from testkit.repository import ROOT
from tests.simulation.world.seeds.faults import faults_of
from tests.simulation.world.seeds.plans import plan_of

SEED = "13"
"""A small world with faults, in which clients do everything that the test looks for."""

LONG_SEED = 148
"""A world of two hours with two faults."""


def simulated(*arguments: str, hash_seed: str = "random") -> Mapping[str, Any]:
    """Return the JSON that `python -m tests.simulation` prints; a finding fails the test."""
    command = [sys.executable, "-m", "tests.simulation", "--json", *arguments]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": hash_seed}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    summary: Mapping[str, Any] = json.loads(run.stdout) if run.stdout else {}
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    return summary


def test_a_world_under_faults_finds_nothing_and_a_seed_gives_the_same_trace() -> None:
    summary = simulated("--seeds", "1", "--first", SEED, "--processes", "1", hash_seed="1")
    assert summary["worlds"] == 1
    assert summary["faults"]
    assert all(summary["events"][name] for name in ("answered", "shown", "changed", "task cancelled"))
    assert simulated("--replay", SEED, hash_seed="2")["digests"][SEED] == summary["digests"][SEED]


@pytest.mark.long
def test_a_long_world_lasts_hours_and_finds_nothing() -> None:
    assert plan_of(LONG_SEED).load_s == 2 * 3600
    summary = simulated("--seeds", "1", "--first", str(LONG_SEED), "--processes", "1")
    assert summary["simulated_hours"] > 2
    assert all(summary["events"][name] for name in ("answered", "shown", "changed", "task cancelled"))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first_seed", ["1", "410000"])
def test_a_seed_gives_the_same_trace_whatever_the_hashes_of_strings_are(first_seed: str) -> None:
    """In world 410003 a reader waits for partitions that the simulated broker first heard of in the order of a set."""
    first, second = (simulated("--seeds", "8", "--first", first_seed, hash_seed=seed) for seed in ("1", "2"))
    assert first["digests"] == second["digests"]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("first", "seeds"), [(0, 60), pytest.param(60, 240, marks=pytest.mark.seeds)])
def test_many_worlds_find_nothing(first: int, seeds: int) -> None:
    assert simulated("--first", str(first), "--seeds", str(seeds), "--processes", "2")["worlds"] == seeds


def test_the_faults_of_a_seed_are_always_the_same() -> None:
    lists = [faults_of(seed) for seed in range(50)]
    assert lists == [faults_of(seed) for seed in range(50)]
    assert {len(faults) for faults in lists} >= {0, 2, 4}
