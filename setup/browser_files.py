"""Fetches the console's JavaScript files from npm's registry and from `sdk/`: `python -m setup.browser_files`.

`browser_files.json` names each package of npm with its version, the integrity that npm publishes for it, and the files
that are used. The registry is that of npm's settings. All files are put into `console/static/packages/`,
which git ignores.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = Path("console/static/packages")
_SDK = (Path("sdk/carillon-device.js"), Path("sdk/carillon-webpush.js"))
_STATE = "versions.json"
_TIMEOUT_S = 120


class FetchError(Exception):
    """A package could not be fetched; the message says which and why."""


def fetch(root: Path = ROOT, out: TextIO = sys.stderr) -> None:
    """Bring the files to the versions of `browser_files.json`; npm is not asked if they are there.

    FetchError: there is no npm, its registry does not answer, or a package is not the one whose integrity is known.
    """
    wanted = json.loads((root / "setup" / "browser_files.json").read_text())
    directory = root / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    for file in _SDK:
        shutil.copyfile(root / file, directory / file.name)
    state = directory / _STATE
    if state.exists() and json.loads(state.read_text()) == wanted:
        return
    contents = {name: content for package, about in wanted.items() for name, content in _files(package, about).items()}
    state.unlink(missing_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    state.write_text(json.dumps(wanted))
    print(f"The console's files from npm are in {directory}.", file=out)


def _files(package: str, about: dict[str, Any]) -> dict[str, bytes]:
    """Return the wanted files of a package by the names that they get."""
    with tempfile.TemporaryDirectory() as directory:
        archive = _archive(f"{package}@{about['version']}", Path(directory))
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if integrity != about["integrity"]:
            raise FetchError(f"{archive.name} is not the package that is wanted: its integrity is {integrity}")
        with tarfile.open(archive) as files:
            return {name: _content(files, package, path) for path, name in about["files"].items()}


def _archive(package: str, directory: Path) -> Path:
    """Fetch a package of this version into an empty directory; return the file."""
    command = ["npm", "pack", "--loglevel=error", f"--pack-destination={directory}", package]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=directory)  # noqa: S603
    except FileNotFoundError:
        raise FetchError(
            f"{package} cannot be fetched: npm is not on the path (make doctor says how to install it)"
        ) from None
    except subprocess.CalledProcessError as error:
        raise FetchError(f"{package} cannot be fetched: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise FetchError(f"{package} cannot be fetched: npm did not end within {_TIMEOUT_S} s") from None
    return next(directory.glob("*.tgz"))


def _content(files: tarfile.TarFile, package: str, path: str) -> bytes:
    try:
        member = files.extractfile(f"package/{path}")
    except KeyError:
        member = None
    if member is None:
        raise FetchError(f"{package} has no file {path}")
    return member.read()


def main() -> int:
    try:
        fetch()
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
