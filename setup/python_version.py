"""Prints one line when this Python cannot run Carillon, with a command that uses another one; exit code 1.

The Makefile runs it before everything else. It is written for Python 3.6, so that old versions get this line too.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_TRIED_S = 30


def supported_minors() -> range:
    """Return the n of each supported Python 3.n, as pyproject.toml names them."""
    found = re.search(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"$', _PROJECT.read_text(encoding="utf-8"), re.M)
    assert found
    return range(int(found.group(1)), int(found.group(2)))


def other_python() -> str:
    """Return the name of a supported Python on the PATH, the newest one; "" if there is none."""
    for minor in reversed(supported_minors()):
        name = "python3.{}".format(minor)
        if shutil.which(name) and _works(name):
            return name
    return ""


def problem(version: "tuple[int, ...]", has_ensurepip: bool) -> str:
    """Return why a Python of this version cannot make the virtual environment, and what to do; "" if it can."""
    minors = supported_minors()
    name = ".".join(str(part) for part in version[:3])
    if version[0] != 3 or version[1] not in minors:
        other = other_python()
        fix = "make run PYTHON={}".format(other) if other else "install one of these, then: make run PYTHON=python3.N"
        return "Carillon needs Python 3.{} to 3.{}, but this is Python {}. {}".format(
            minors[0], minors[-1], name, "Use another one: " + fix if other else "To go on, " + fix
        )
    if not has_ensurepip:
        package = "python3.{}-venv".format(version[1])
        return (
            "Python {} cannot make virtual environments: ensurepip is missing. Install it: apt-get install {}".format(
                name, package
            )
        )
    return ""


def _works(name: str) -> bool:
    """Return whether the program runs and can make virtual environments; the shim of a version manager may not."""
    command = [name, "-c", "import ensurepip"]
    trying = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return trying.wait(timeout=_TRIED_S) == 0
    except subprocess.TimeoutExpired:
        os.killpg(trying.pid, signal.SIGKILL)
        trying.wait()
        return False


def main() -> int:
    found = problem(tuple(sys.version_info[:3]), find_spec("ensurepip") is not None)
    if found:
        sys.stderr.write(found + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
