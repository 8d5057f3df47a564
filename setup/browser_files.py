"""Fetches the JavaScript files of the console's pages from npm's registry: `python -m setup.browser_files`.

`browser_files.json` names each package with its version, the integrity that npm publishes for it, and the files that
are used. They are put into `edge/console/static/packages/`, which git ignores. Another registry is that of the
environment variable NPM_CONFIG_REGISTRY.
"""

import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = Path("edge/console/static/packages")
_STATE = "versions.json"
_TIMEOUT_S = 60


class FetchError(Exception):
    """A package could not be fetched; the message says which and why."""


def fetch(root: Path = ROOT, out: TextIO = sys.stderr) -> None:
    """Bring the files to the versions of `browser_files.json`; does nothing if they are there.

    FetchError: the registry does not answer, or a package is not the one whose integrity is known.
    """
    wanted = json.loads((root / "setup" / "browser_files.json").read_text())
    directory = root / DIRECTORY
    state = directory / _STATE
    if state.exists() and json.loads(state.read_text()) == wanted:
        return
    registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
    contents = {
        name: content for package, about in wanted.items() for name, content in _files(registry, package, about).items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    state.unlink(missing_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    state.write_text(json.dumps(wanted))
    print(f"The console's files from npm are in {directory}.", file=out)


def _files(registry: str, package: str, about: dict[str, Any]) -> dict[str, bytes]:
    """Return the wanted files of a package by the names that they get."""
    url = f"{registry}/{package}/-/{package.rpartition('/')[2]}-{about['version']}.tgz"
    if not url.startswith(("https://", "http://")):
        raise FetchError(f"NPM_CONFIG_REGISTRY is {registry!r}, which is no address of a registry")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310
            archive = response.read()
    except OSError as error:
        raise FetchError(f"{url} cannot be fetched: {error}") from None
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if integrity != about["integrity"]:
        raise FetchError(f"{url} is not the package that is wanted: its integrity is {integrity}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {name: _content(files, package, path) for path, name in about["files"].items()}


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
