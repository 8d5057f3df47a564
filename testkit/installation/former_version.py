"""The code of an earlier commit of this repository, from which an installation is upgraded."""

import subprocess
import sys
from pathlib import Path

from testkit.repository import ROOT


def has_commit(commit: str) -> bool:
    """Return whether this clone has the commit; a shallow clone has only the newest one."""
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    return found.returncode == 0


def code_of(commit: str, directory: Path) -> Path:
    """Write the files of a commit into a new directory, with the code that its contracts generate; return it."""
    directory.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=directory, input=archive, check=True)
    subprocess.run([sys.executable, "protos/build.py"], cwd=directory, check=True, capture_output=True)
    return directory
