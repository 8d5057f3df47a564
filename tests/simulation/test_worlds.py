"""Worlds of the service's roles: they find nothing, and a seed gives the same trace in every process."""

import os
import subprocess
import sys

import pytest

from testkit.repository import ROOT


def simulated(*arguments: str, hash_seed: str = "0") -> str:
    """Return what `python -m tests.simulation.backends` prints; a finding fails the test with its trace."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation.backends", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    return run.stdout


def test_a_seed_gives_the_same_trace_whatever_the_hashes_of_strings_are() -> None:
    first, second = (simulated("--seeds", "2", "--digests", hash_seed=seed) for seed in ("1", "2"))
    assert first == second
    assert len({line.split()[1] for line in first.splitlines()}) == 2


@pytest.mark.long
def test_many_worlds_find_nothing() -> None:
    assert "findings in 0 worlds" in simulated("--seeds", "300", "--at-once", "2")
