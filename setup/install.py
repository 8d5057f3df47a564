"""Makes `.venv`, the virtual environment of this checkout, with the locked packages, or repairs it.

`make install` and `make run` run it: `python -m setup.install`, with `--dev` for the tests' packages too. A finished
environment that fits is left alone. One that was interrupted, was made by another version of Python or in another
folder, or whose Python is gone, is made anew; after a change of the lock files the changed packages are installed.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from setup import browser_files
from setup.pip_progress import PipError, PipProgress, run_pip

ROOT = Path(__file__).resolve().parent.parent
VENV = ("venv",)
"""The module that makes a virtual environment, with its options."""

_FINISHED = "installed"
"""The file in `.venv` that an installation writes last: its EnvironmentState as JSON."""


class Size(NamedTuple):
    """The packages of an installation, rounded: megabytes that pip downloads, and on the disk."""

    download_mb: int
    disk_mb: int


RUN = Size(300, 1000)
DEV = Size(440, 1650)


class EnvironmentState(NamedTuple):
    """Describes a finished environment. `inputs`: a hash of the files that decide which packages are installed."""

    python: str
    folder: str
    inputs: str
    dev: bool


def wanted_state(root: Path, *, dev: bool) -> EnvironmentState:
    files = [root / "pyproject.toml", root / "protos" / "build.py", root / "sdk" / "pyproject.toml"]
    files += (root / "requirements").glob("*.lock")
    files += (root / "protos").rglob("*.proto")
    inputs = hashlib.sha256()
    for file in sorted(files):
        inputs.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    version = ".".join(map(str, sys.version_info[:2]))
    return EnvironmentState(version, str(root), inputs.hexdigest(), dev)


def finished_state(venv: Path) -> EnvironmentState | None:
    """Return the state of a finished environment; None for one that is missing or unfinished."""
    try:
        return EnvironmentState(**json.loads((venv / _FINISHED).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def reason_to_remake(venv: Path, finished: EnvironmentState | None, wanted: EnvironmentState) -> str:
    """Return why the environment has to be made anew; "" if it does not, or if there is none."""
    if not venv.exists() and not venv.is_symlink():
        return ""
    if finished is None:
        return "is unfinished: an installation was interrupted"
    if finished.python != wanted.python:
        return f"was made by Python {finished.python}, and this is Python {wanted.python}"
    if finished.folder != wanted.folder:
        return f"was made in {finished.folder}"
    if not _starts(venv / "bin" / "python"):
        return "has a Python that does not start"
    return ""


def pip_arguments(*, dev: bool) -> list[list[str]]:
    """Return the arguments of each call of pip: first the locked packages, checked by hash, then this checkout."""
    locks = ["dev"] if dev else ["embedded", "build"]
    locked = [word for name in locks for word in ("-r", f"requirements/{name}.lock")]
    return [
        ["install", "--require-hashes", "--no-compile", *locked],
        ["install", "--no-deps", "--no-build-isolation", "-e", ".", "-e", "./sdk"],
    ]


def install(root: Path, *, dev: bool, out: TextIO) -> None:
    """Bring `.venv` to the wanted state. PipError: pip failed; the next call begins anew."""
    venv = root / ".venv"
    finished = finished_state(venv)
    if reason := reason_to_remake(venv, finished, wanted_state(root, dev=dev)):
        print(f".venv {reason}. Making it anew.", file=out)
        if venv.is_symlink():
            venv.unlink()
        else:
            shutil.rmtree(venv)
        finished = None
    wanted = wanted_state(root, dev=dev or (finished is not None and finished.dev))
    if finished == wanted:
        return
    print(announcement(root, dev=wanted.dev, python=wanted.python, is_new=finished is None), file=out)
    (venv / _FINISHED).unlink(missing_ok=True)
    with PipProgress(out, venv, _packages(root, dev=wanted.dev)) as progress:
        if finished is None:
            progress.show("making the virtual environment")
            subprocess.run([_base_python(), "-m", *VENV, str(venv)], check=True)  # noqa: S603
        for arguments in pip_arguments(dev=wanted.dev):
            run_pip([str(venv / "bin" / "python"), "-m", "pip", *arguments], root, progress)
        if not os.environ.get("PIP_NO_COMPILE"):
            progress.show("compiling the packages")
            _compile(venv)
    unfinished = venv / f"{_FINISHED}.new"
    unfinished.write_text(json.dumps(wanted._asdict()) + "\n")
    unfinished.rename(venv / _FINISHED)
    print(f"Installed in {venv}.", file=out)


def _compile(venv: Path) -> None:
    """Compile the installed packages on all processors; pip would on one, in half a minute.

    Whether all can be compiled is not asked: some have files for other versions of Python.
    """
    folders = map(str, venv.glob("lib/python3*/site-packages"))
    command = [str(venv / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", *folders]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603


def _fetch_browser_files(root: Path) -> None:
    """Fetch the console's files from npm. Without them its pages work too, but do not change by themselves."""
    try:
        browser_files.fetch(root, sys.stderr)
    except browser_files.FetchError as error:
        print(f"{error}\nUntil another make fetches it, the console's pages show no live changes.", file=sys.stderr)


def announcement(root: Path, *, dev: bool, python: str, is_new: bool) -> str:
    if not is_new:
        return "The lock files have changed: installing the changed packages in .venv."
    size = DEV if dev else RUN
    what = "Carillon with the tools of its tests" if dev else "Carillon"
    return (
        f"Installing {what} for Python {python} in .venv: {_packages(root, dev=dev)} packages,"
        f" about {size.download_mb} MB to download and {size.disk_mb / 1000:.1f} GB on the disk;"
        " about a minute and the time of the download."
    )


def _packages(root: Path, *, dev: bool) -> int:
    files = [word for word in pip_arguments(dev=dev)[0] if word.endswith(".lock")]
    lines = {line.split()[0] for file in files for line in (root / file).read_text().splitlines() if "==" in line}
    return len({line.partition("==")[0] for line in lines})


def _base_python() -> str:
    """Return this Python outside of any virtual environment: the activated one may be the one that is made anew."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _starts(python: Path) -> bool:
    try:
        return subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError:
        return False


@contextlib.contextmanager
def _one_at_a_time(root: Path, out: TextIO) -> Iterator[None]:
    """Wait while another process installs in this checkout."""
    with (root / "pyproject.toml").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another make is installing in this checkout; waiting for it.", file=out)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    try:
        with _one_at_a_time(root, sys.stderr):
            install(root, dev="--dev" in arguments, out=sys.stderr)
            _fetch_browser_files(root)
    except PipError as error:
        print(f"{error}\nThe installation failed. Fix what pip says above and run make again.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Run make again: it begins anew, and pip keeps what it has downloaded.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
