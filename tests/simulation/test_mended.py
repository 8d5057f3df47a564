"""Mended worlds do not find their defects again."""

import subprocess
import sys

import pytest

from testkit.repository import ROOT
from tests.simulation.mended import MENDED


@pytest.mark.long
@pytest.mark.parametrize("name", MENDED)
def test_a_mended_world_has_no_findings(name: str) -> None:
    command = [sys.executable, "-m", "tests.simulation.mended", name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{MENDED[name].found}\n{run.stdout}\n{run.stderr}"
