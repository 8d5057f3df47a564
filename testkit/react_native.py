"""React Native's declarations, and the React Native SDK as an app installs it."""

import base64
import hashlib
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from setup.react_native_package import pack
from testkit.npm_packages import npm_packages
from testkit.programs import needed
from testkit.repository import ROOT

PAGE = ROOT / "docs/react-native.md"
VERSION = "0.76.9"
"""The oldest React Native that the SDK is for."""

_INTEGRITY = "sha512-+LRwecWmTDco7OweGsrECIqJu0iyrREd6CTCgC/uLLYipiHvk+MH9nd6drFtCw/6Blz6eoKTcH9YTTJusNtrWg=="
_CACHE = ROOT / ".cache/react-native"
_GENERATE = Path(__file__).with_name("generate_react_native.js")


def react_native() -> Path:
    """Return the folder of the package react-native, without its dependencies; npm fetches it once, 24 MB."""
    made = _CACHE / VERSION
    if not made.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            command = [needed("npm"), "pack", "--silent", f"--pack-destination={scratch}", f"react-native@{VERSION}"]
            subprocess.run(command, check=True, capture_output=True, cwd=scratch)
            (archive,) = Path(scratch).glob("*.tgz")
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            assert integrity == _INTEGRITY
            with tarfile.open(archive) as files:
                files.extractall(scratch, filter="data")
            try:
                os.rename(Path(scratch, "package"), made)
            except OSError:  # another test process was faster
                assert made.exists()
    return made


def installed(folder: Path) -> Path:
    """Install the SDK's tarball below `folder`/node_modules, as npm does; return the package's folder."""
    needed("npm")
    modules = folder / "node_modules"
    modules.mkdir()
    pack(folder)
    (tarball,) = folder.glob("carillon-react-native-*.tgz")
    with tarfile.open(tarball) as archive:
        archive.extractall(modules, filter="data")
    return (modules / "package").rename(modules / "carillon-react-native")


def generated(package: Path, folder: Path) -> Path:
    """Run React Native's codegen on the package's specification; return the folder of the generated sources."""
    codegen = npm_packages(ROOT / "testkit/javascript") / "node_modules/@react-native/codegen"
    command = [needed("node"), str(_GENERATE), str(codegen), str(package), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder
