"""What was mended is not found again by the worlds that found it."""

import subprocess
import sys

import pytest

from testkit.repository import ROOT
from tests.simulation.mended import MENDED


@pytest.mark.parametrize("name", MENDED)
def test_what_was_mended_is_not_found_again(name: str) -> None:
    command = [sys.executable, "-m", "tests.simulation.mended", name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{MENDED[name].found}\n{run.stdout}\n{run.stderr}"
