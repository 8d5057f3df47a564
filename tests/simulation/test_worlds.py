"""Worlds of the service's roles: they find nothing, and a seed gives the same trace in every process."""

import os
import subprocess
import sys

import pytest

from testkit.repository import ROOT

_BROKEN_BY_TWO_FAULTS = """
from functools import partial
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.running import run_world, run_worlds, without_needless_faults

class Broken:
    def faults(self, seed):
        return [Fault(float(number), "kill", str(number)) for number in range(9)]

    async def run(self, world, faults):
        broken = {"2", "7"} <= {fault.target for fault in faults}
        world.trace.event("ran", faults=len(faults))
        return ["broken"] if broken else []

(failed,) = run_worlds([partial(run_world, Broken(), 1)])
fewest = without_needless_faults(Broken(), failed)
print(failed.findings, len(failed.faults), [fault.target for fault in fewest.faults], fewest.lines[-1].split()[1:])
"""


def simulated(*arguments: str, hash_seed: str = "0") -> str:
    """Return what `python -m tests.simulation.backends` prints; a finding fails the test with its trace."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation.backends", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    return run.stdout


@pytest.mark.long
@pytest.mark.parametrize("seed", ["44", "45", "1009"])
def test_a_seed_gives_the_same_trace_whatever_the_hashes_of_strings_and_the_addresses_of_objects_are(seed: str) -> None:
    """In world 1009 several calls are given up at once, because their owner has a successor."""
    first, second = (simulated("--first", seed, "--seeds", "1", "--digests", hash_seed=each) for each in ("1", "2"))
    assert first == second
    assert first.startswith(seed)


def test_a_finding_is_shown_with_the_faults_that_it_needs() -> None:
    command = [sys.executable, "-c", _BROKEN_BY_TWO_FAULTS]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "['broken'] 9 ['2', '7'] ['world', 'ran', 'faults=2']\n"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("first", "seeds"), [("0", "80"), pytest.param("80", "70", marks=pytest.mark.seeds)])
def test_many_worlds_find_nothing(first: str, seeds: str) -> None:
    assert "findings in" in simulated("--first", first, "--seeds", seeds, "--at-once", "2")
