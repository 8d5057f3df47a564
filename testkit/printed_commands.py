"""Runs the shell commands of docs/operators/backup.md as they are printed there, with other paths."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from testkit.installation.processes import CARILLON, Installation
from testkit.repository import ROOT

PAGE = ROOT / "docs/operators/backup.md"


def commands(heading: str) -> str:
    """Return the commands of a section: all its shell blocks, in order."""
    (section,) = re.findall(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert blocks, heading
    return "".join(blocks)


def run(heading: str, installation: Installation, paths: Mapping[str, Path]) -> None:
    """Run the commands of a section with an installation's settings. `paths`: replacements of the printed paths."""
    text = commands(heading)
    for printed, path in paths.items():
        assert printed in text, f"{printed} is in no command of {heading}"
        text = text.replace(printed, str(path))
    env = {**installation.env, "PATH": f"{Path(CARILLON).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euc", text], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
