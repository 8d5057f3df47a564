"""The installation of a checkout: its choice of Python, when it makes `.venv` anew, and what it prints."""

import ast
import importlib.metadata
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from setup import install, pip_progress, python_version
from setup.install import DEV, RUN, Size, finished_state, pip_arguments
from setup.pip_progress import PipError, PipProgress
from testkit.repository import ROOT
from tests.contract.packaging.container_files import PROJECT
from tests.contract.packaging.test_locks import PYTHONS, locked

OLDEST_THAT_READS_IT = (3, 6)
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


class Checkout:
    """A checkout with small lock files. Its virtual environment is real, but pip is not run: its calls are recorded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.calls: list[list[str]] = []
        self.fails = False
        (root / "protos").mkdir(parents=True)
        (root / "requirements").mkdir()
        (root / "sdk").mkdir()
        (root / "sdk" / "pyproject.toml").touch()
        (root / "pyproject.toml").write_text("[project]\n")
        (root / "protos" / "build.py").write_text("")
        for name in ("embedded", "build", "dev"):
            (root / "requirements" / f"{name}.lock").write_text("a==1\n")

    def run_pip(self, command: Sequence[str], cwd: Path, progress: object) -> None:
        assert cwd == self.root
        self.calls.append(list(command[3:]))
        if self.fails:
            raise PipError("no space left")

    def install(self, *, dev: bool = False) -> str:
        """Install and return what was printed."""
        out = io.StringIO()
        self.calls.clear()
        install.install(self.root, dev=dev, out=out)
        return out.getvalue()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    made = Checkout(tmp_path / "carillon")
    monkeypatch.setattr(install, "run_pip", made.run_pip)
    monkeypatch.setattr(install, "VENV", ("venv", "--without-pip"))
    return made


def test_a_finished_environment_is_left_alone(checkout: Checkout) -> None:
    assert "Installing Carillon for Python 3." in checkout.install()
    assert checkout.calls == pip_arguments(dev=False)
    assert (checkout.install(), checkout.calls) == ("", [])
    checkout.install(dev=True)
    assert checkout.calls == pip_arguments(dev=True)
    assert (checkout.install(), checkout.calls) == ("", [])
    (checkout.root / "requirements" / "dev.lock").write_text("a==2\n")
    assert "The lock files have changed" in checkout.install()
    assert checkout.calls == pip_arguments(dev=True)


def _interrupt(checkout: Checkout) -> None:
    shutil.rmtree(checkout.venv)
    checkout.fails = True
    with pytest.raises(PipError):
        checkout.install()
    checkout.fails = False


def _replace_python(checkout: Checkout) -> None:
    finished = checkout.venv / "installed"
    finished.write_text(re.sub(r'"python": "[\d.]+"', '"python": "3.9"', finished.read_text()))


def _move(checkout: Checkout) -> None:
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    checkout.venv = checkout.root / ".venv"


def _remove_python(checkout: Checkout) -> None:
    python = checkout.venv / "bin" / "python"
    python.unlink()
    python.symlink_to("/usr/bin/python3.9-removed")


def _stop_in_an_upgrade(checkout: Checkout) -> None:
    (checkout.root / "requirements" / "embedded.lock").write_text("a==3\n")
    checkout.fails = True
    with pytest.raises(PipError):
        checkout.install()
    checkout.fails = False


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_interrupt, "is unfinished"),
        (_stop_in_an_upgrade, "is unfinished"),
        (_replace_python, "was made by Python 3.9"),
        (_move, "was made in "),
        (_remove_python, "has a Python that does not start"),
    ],
)
def test_an_unusable_environment_is_made_anew(
    checkout: Checkout, harm: Callable[[Checkout], None], reason: str
) -> None:
    checkout.install()
    harm(checkout)
    (checkout.venv / "left-over").touch()
    printed = checkout.install()
    assert printed.startswith(f".venv {reason}")
    assert "Making it anew." in printed
    assert checkout.calls == pip_arguments(dev=False)
    assert not (checkout.venv / "left-over").exists()
    assert (checkout.install(), checkout.calls) == ("", [])


def test_an_error_of_pip_is_shown(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.fails = True
    assert install.main([], checkout.root) == 1
    assert "no space left\nThe installation failed." in capsys.readouterr().err
    assert finished_state(checkout.venv) is None


def test_pip_runs_with_progress_and_its_last_lines_are_the_error(tmp_path: Path) -> None:
    out = io.StringIO()
    progress = PipProgress(out, tmp_path, 2)
    lines = ["Collecting a==1 (from -r x)", "  Downloading a-1-py3-none-any.whl (5.0 MB)", "Collecting b==2", "broken"]
    program = [sys.executable, "-c", f"print({os.linesep.join(lines)!r}); raise SystemExit(1)"]
    with pytest.raises(PipError, match=r"(?s)Collecting a==1.*broken$"):
        pip_progress.run_pip(program, tmp_path, progress)
    assert out.getvalue() == "  downloading a (5.0 MB)\n"
    assert progress.fraction == 0.5
    progress.read("Installing collected packages: a, b")
    record = tmp_path / "lib/python3.11/site-packages/a-1.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    record.touch()
    assert progress.fraction == 0.75


@pytest.mark.parametrize(("size", "names"), [(RUN, ["embedded", "build"]), (DEV, ["dev"])])
def test_the_announced_size_is_that_of_the_packages(size: Size, names: list[str]) -> None:
    assert abs(installed_mb(*names) - size.disk_mb) < 0.15 * size.disk_mb


def test_front_ends_and_delivery_need_at_most_400_mb() -> None:
    """Bytes of the files, in blocks of the disk, of all packages of requirements/runtime.lock; pip has 17 MB more."""
    assert installed_mb("runtime") < 400 - 17


def installed_mb(*names: str) -> float:
    packages = {one.name for name in names for one in locked(name) if not one.requirement.marker}
    packages |= {"numpy", "cffi", "pycparser"}
    files = [Path(str(file.locate())) for name in packages for file in importlib.metadata.files(name) or ()]
    return sum(file.stat().st_blocks * 512 for file in files if file.exists()) / 1e6


@pytest.mark.parametrize("name", ["python_version", "doctor"])
def test_old_pythons_can_parse_the_modules_that_refuse_them(name: str) -> None:
    ast.parse((ROOT / f"setup/{name}.py").read_text(), feature_version=OLDEST_THAT_READS_IT)


def test_unsupported_pythons_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    supported = [f"3.{minor}" for minor in python_version.supported_minors()]
    assert tuple(supported) == PYTHONS
    range_text = f"{supported[0]} to {supported[-1]}"
    assert PROJECT["project"]["requires-python"] == f">={supported[0]},<3.{python_version.supported_minors().stop}"
    assert f"install Python {range_text}" in (ROOT / "Makefile").read_text()
    assert range_text in (ROOT / "README.md").read_text()
    monkeypatch.setattr(python_version, "other_python", lambda: "python3.13")
    for version in ((3, 10, 13), (3, 15, 0), (2, 7, 18)):
        found = python_version.problem(version, True)
        assert found.startswith(
            f"Carillon needs Python {range_text}, but this is Python {'.'.join(map(str, version))}. "
        )
        assert found.endswith("make run PYTHON=python3.13")
        assert "\n" not in found
    for minor in python_version.supported_minors():
        assert python_version.problem((3, minor, 0), True) == ""
        assert f"apt-get install python3.{minor}-venv" in python_version.problem((3, minor, 0), False)


def test_a_program_that_does_not_end_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (("python3.13", "exec sleep 600"), ("python3.12", "exit 1"), ("python3.11", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(python_version, "_TRIED_S", 0.05)
    monkeypatch.setattr(python_version, "supported_minors", lambda: range(12, 14))
    assert python_version.other_python() == ""
    monkeypatch.setattr(python_version, "_TRIED_S", 60)
    monkeypatch.setattr(python_version, "supported_minors", lambda: range(11, 13))
    assert python_version.other_python() == "python3.11"


def test_a_missing_python_is_named_in_one_line() -> None:
    made = subprocess.run(
        ["make", "-s", "run", "PYTHON=no-python"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode != 0
    assert made.stderr.splitlines()[0].startswith("There is no no-python: install Python 3.11 to 3.14")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_checkout_whose_installation_was_killed_and_one_that_was_moved_are_repaired(tmp_path: Path) -> None:
    """The real thing: `make install` in a clone, killed while pip unpacks, then repeated, also after a move.

    Without the bytecode of the packages, half a minute of CPU time for each installation.
    """
    env = {**os.environ, "PIP_NO_COMPILE": "1"}
    clone, moved = tmp_path / "carillon", tmp_path / "moved"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    command = ["make", "-s", "install", f"PYTHON={sys.executable}"]
    with subprocess.Popen(
        command, cwd=clone, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as making:
        assert making.stderr is not None
        for line in making.stderr:
            if "unpacking" in line:
                break
        os.killpg(making.pid, signal.SIGKILL)
    made = subprocess.run(command, cwd=clone, env=env, stderr=subprocess.PIPE, text=True, check=True)
    assert made.stderr.startswith(".venv is unfinished")
    subprocess.run([clone / ".venv/bin/carillon", "--version"], check=True)
    clone.rename(moved)
    made = subprocess.run(command, cwd=moved, env=env, stderr=subprocess.PIPE, text=True, check=True)
    assert made.stderr.startswith(f".venv was made in {clone}")
    subprocess.run([moved / ".venv/bin/carillon", "--version"], check=True)


def test_every_module_is_imported() -> None:
    """With each version of Python that the tests run with, whichever role or command needs the module."""
    packages = ("protos", "services", "edge", "analytics", "carillon", "carillon_device")
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", IMPORT_ALL, *packages]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
