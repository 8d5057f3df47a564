"""Mended worlds do not find their defects again."""

import subprocess
import sys

import pytest

from testkit.repository import ROOT
from tests.simulation.mended import MENDED

_LONG = {
    "clock-behind",
    "connected-once-more",
    "facts-after-removed-records",
    "held-up-request",
    "hung-edge",
    "late-hello",
    "paused-targeting-after-kills",
    "refused-before-its-claim",
    "replaced-by-a-dead-one",
    "replaced-while-read",
    "session-before-its-device",
    "standbys-that-start-together",
    "stopped-after-its-successor",
}
"""Worlds that take many seconds; `make test-long` runs them."""


def test_long_worlds_are_among_the_mended() -> None:
    assert MENDED.keys() > _LONG


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in _LONG)) for name in MENDED])
def test_a_mended_world_has_no_findings(name: str) -> None:
    command = [sys.executable, "-m", "tests.simulation.mended", name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{MENDED[name].found}\n{run.stdout}\n{run.stderr}"
