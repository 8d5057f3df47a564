"""Worlds of an installation with its clients find nothing, give one trace for each seed, and find planted bugs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from edge.core.push import Pushes
from services.gateway.connection import DeviceConnection
from services.runtime.rpc.peers import Peers
from testkit.repository import ROOT
from tests.simulation.kernel.running import run_world
from tests.simulation.world.plan import faults_of
from tests.simulation.world.run import InstallationWorld

MENDED = (192, 100104)
"""Seeds that once found defects: a late hello of a connection that the device had given up replaced the present one; a
request that was held up in one gateway was carried out after later ones through another."""


def simulated(*arguments: str, hash_seed: str = "random") -> Mapping[str, Any]:
    """Return the JSON that `python -m tests.simulation` prints; a finding fails the test."""
    command = [sys.executable, "-m", "tests.simulation", "--json", *arguments]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": hash_seed}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    summary: Mapping[str, Any] = json.loads(run.stdout) if run.stdout else {}
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    return summary


def test_worlds_under_faults_find_nothing_and_a_seed_gives_the_same_trace() -> None:
    seed = str(MENDED[0])
    summary = simulated("--seeds", "2", "--first", seed, "--processes", "1", hash_seed="1")
    assert summary["worlds"] == len(set(summary["digests"].values())) == 2
    assert summary["faults"]
    assert all(summary["events"][name] for name in ("answered", "shown", "changed", "task cancelled"))
    assert simulated("--replay", seed, hash_seed="2")["digests"][seed] == summary["digests"][seed]


@pytest.mark.parametrize("seed", MENDED[1:])
def test_what_was_mended_is_not_found_again(seed: int) -> None:
    assert simulated("--replay", str(seed))["worlds"] == 1


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_seed_gives_the_same_trace_whatever_the_hashes_of_strings_are() -> None:
    first, second = (simulated("--seeds", "30", "--first", "1", hash_seed=seed) for seed in ("1", "2"))
    assert first["digests"] == second["digests"]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_worlds_find_nothing() -> None:
    assert simulated("--seeds", "300", "--processes", "2")["worlds"] == 300


async def not_appended(*_: object) -> None:
    """Answer a push without the log."""


async def not_waited(*_: object) -> None:
    """Answer a change before any role has applied it."""


def sent_twice(send: Callable[..., None]) -> Callable[..., None]:
    def twice(connection: DeviceConnection, frame: bytearray, msgid: int, now_ms: int) -> None:
        send(connection, frame, msgid, now_ms)
        send(connection, frame, msgid, now_ms)

    return twice


PLANTED: Sequence[tuple[type, str, Callable[..., Any], str]] = [
    (Pushes, "commit", not_appended, "is in the log as []"),
    (Peers, "wait_applied", not_waited, "was read as"),
    (DeviceConnection, "send_push", sent_twice(DeviceConnection.send_push), "repeats: "),
]


@pytest.mark.long
@pytest.mark.parametrize(("owner", "name", "bug", "finding"), PLANTED, ids=[bug[2].__name__ for bug in PLANTED])
def test_a_planted_bug_is_found_in_few_worlds(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., Any], finding: str
) -> None:
    monkeypatch.setattr(owner, name, bug)
    for seed in range(10):
        outcome = run_world(InstallationWorld(), seed, [])
        if any(finding in found for found in outcome.findings):
            return
    pytest.fail("no world found it")


def test_the_faults_of_a_seed_are_always_the_same() -> None:
    lists = [faults_of(seed) for seed in range(50)]
    assert lists == [faults_of(seed) for seed in range(50)]
    assert {len(faults) for faults in lists} >= {0, 1, 4}
