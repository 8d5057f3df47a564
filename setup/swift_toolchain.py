"""Sets up Swift for the SDK of iPhones: the machine's own, else Debian 13's packages in a folder, 0.5 GB to fetch.

apt fetches and verifies the packages with lists and a state of its own, and they are unpacked without being installed:
the machine's packages stay as they are. The folder, of 2.5 GB, is shared by all clones of the user. Programs in it run
by chroot, in a mount namespace of their own: nothing is mounted any more when they have ended. That needs root and
apt-get, and `CARILLON_TEST_INSTALL=no` forbids it.

`python -m setup.swift_toolchain` sets it up, with `--check` it only says what is left out without it, and with
`--package FOLDER` it writes the package for apps, once it builds.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from setup.doctor import installed

ROOT = Path(__file__).resolve().parent.parent
SDK = ROOT / "sdk/swift"
_PACKED = ("Package.swift", "Sources", "Tests", "Sample")
_PACKAGES = ("swiftlang", "libc6-dev", "libstdc++-14-dev", "dash", "coreutils")
_SOURCES = Path("/etc/apt")
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    _AUTHORITIES: "",
}
"""What the scripts of packages would write, as far as it is needed."""

_READY = "carillon-swift"
"""A file within the folder, which is written last."""

_LEAST_FREE_BYTES = 8 << 30
_TIMEOUT_S = 600
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
"""Whoever ends a program ends its children too."""

_ENTER = r"""
root=$1 cwd=$2; shift 2
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
  [ -e "$root$2" ] || mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
  shift 2
done
shift
exec chroot "$root" sh -c 'cd "$1"; shift; exec "$@"' sh "$cwd" "$@"
"""
"""Programs find Swift's libraries by /proc/self/exe."""


class Swift(NamedTuple):
    """A usable Swift: the machine's own, or that in the folder `root`."""

    root: Path | None

    def command(self, words: Sequence[str], cwd: Path = ROOT, authority: str = "") -> list[str]:
        """Return the command that runs a program with Swift; it sees the clone and temporary files as others do.

        `authority`: a file of the authorities that it trusts instead of the system's, for the Swift of a folder.
        """
        if self.root is None:
            return ["env", "-C", str(cwd), *words]
        mounts = [path for shared in (str(ROOT), tempfile.gettempdir()) for path in (shared, shared)]
        if authority:
            mounts += [authority, f"/{_AUTHORITIES}"]
        return [*_NAMESPACES, "sh", "-ec", _ENTER, "sh", str(self.root), str(cwd), *mounts, "--", *words]


def folder() -> Path:
    """Return where Swift is set up."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "carillon", "swift")


def found() -> Swift | None:
    """Return the Swift that this machine has now."""
    if installed("swiftc"):
        return Swift(None)
    return Swift(folder()) if (folder() / _READY).exists() else None


def impossible() -> str:
    """Return why Swift may not be set up on this machine; "" where it may be tried."""
    if not all(map(shutil.which, ("apt-get", "dpkg-deb", "unshare"))):
        return "Swift is not installed, and this machine has no apt-get to set it up"
    if os.geteuid() != 0:
        return "Swift is not installed, and only root may set it up"
    if os.environ.get("CARILLON_TEST_INSTALL") == "no":
        return "Swift is not installed, and CARILLON_TEST_INSTALL=no forbids to set it up"
    return ""


def toolchain() -> Swift | str:
    """Return Swift, set up if need be; else why there is none."""
    if swift := found():
        return swift
    if why := impossible():
        return why
    folder().parent.mkdir(parents=True, exist_ok=True)
    with folder().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if swift := found():
            return swift
        if shutil.disk_usage(folder().parent).free < _LEAST_FREE_BYTES:
            return f"Swift is not installed, and less than 8 GB are free in {folder().parent}"
        print(f"Setting up Swift in {folder()}, which takes a minute and 2.5 GB", file=sys.stderr)
        try:
            _set_up(folder())
        except _FailedError as error:
            shutil.rmtree(folder(), ignore_errors=True)
            return f"Swift could not be set up: {error}"
    return Swift(folder())


class _FailedError(Exception):
    pass


def _set_up(root: Path) -> None:
    """Unpack Swift, with what it needs of Debian 13, in a folder. _FailedError: why that is not possible."""
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("proc", "dev", "root"):
        (root / name).mkdir()
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        for file in _fetched(Path(scratch)):
            _run(["dpkg-deb", "-x", str(file), str(root)])
            file.unlink()
    for name, text in _FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "usr/bin/swift").symlink_to("../libexec/swift/bin/swift")
    (root / _READY).write_text(_run(Swift(root).command(["swift", "--version"], Path("/"))))


def _fetched(scratch: Path) -> list[Path]:
    """Return the files of the packages, and of all that they depend on, whatever the machine itself has."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources.list").write_text(f"deb [signed-by={_KEYS}] {_mirror()} trixie main\n")
    settings = {
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "-",
        "Dir::State": scratch / "state",
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch / "cache",
        "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",
    }
    apt = ["apt-get", "-qq", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    _run([*apt, "update"])
    _run([*apt, "install", "-y", "--no-install-recommends", "--download-only", *_PACKAGES])
    return sorted((scratch / "cache/archives").glob("*.deb"))


def _mirror() -> str:
    """Return the mirror that the machine's own packages come from."""
    for file in sorted([*(_SOURCES / "sources.list.d").glob("*.sources"), _SOURCES / "sources.list"]):
        text = file.read_text() if file.exists() else ""
        if match := re.search(r"^(?:URIs: *|deb +(?:\[.*?\] *)?)(\S*/debian/?)(?:\s|$)", text, re.MULTILINE):
            return match[1]
    return "http://deb.debian.org/debian"


def _run(command: Sequence[str]) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or error.stdout.strip()).splitlines() or ["no reason given"]
        raise _FailedError(next((line for line in said if line.startswith("E: ")), said[-1])) from None
    except subprocess.TimeoutExpired:
        raise _FailedError(f"it did not end within {_TIMEOUT_S} s") from None
    except OSError as error:
        raise _FailedError(str(error)) from None
    return done.stdout


def package(target: Path) -> int:
    """Write the package for apps; return 1 if it does not build. Without Swift it is written as it is."""
    (version,) = re.findall(r'sdkVersion = "swift-([\d.]+)"', (SDK / "Sources/Carillon/Config.swift").read_text())
    files = sorted(path for name in _PACKED for path in [SDK / name, *(SDK / name).rglob("*")] if path.is_file())
    swift = toolchain()
    if isinstance(swift, str):
        print(f"the Swift SDK: packed without being built, because {swift}", file=sys.stderr)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            for path in files:
                copy = Path(scratch, path.relative_to(SDK))
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
            try:
                _run(swift.command(["swift", "build", "-Xswiftc", "-warnings-as-errors"], Path(scratch)))
            except _FailedError as error:
                print(f"the Swift SDK does not build: {error}", file=sys.stderr)
                return 1
    with zipfile.ZipFile(target / f"carillon-swift-{version}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            entry = zipfile.ZipInfo(f"Carillon/{path.relative_to(SDK)}", (2026, 1, 1, 0, 0, 0))
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return 0


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "--package":
        return package(Path(arguments[1]))
    swift = toolchain() if "--check" not in arguments else found() or impossible()
    if isinstance(swift, str) and swift:
        print(f"the Swift SDK: left out, because {swift}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
