"""Packages of npm that tests run in Node, pinned by a `package-lock.json`."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from testkit.programs import needed
from testkit.repository import ROOT


def npm_packages(pinned: Path) -> Path:
    """Return the directory with the packages that the lock file in `pinned` names, which npm fetches once."""
    cache = ROOT / ".cache" / f"npm-{pinned.name}"
    lock = (pinned / "package-lock.json").read_bytes()
    directory = cache / hashlib.sha256(lock).hexdigest()[:16]
    if not directory.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            for name in ("package.json", "package-lock.json"):
                shutil.copyfile(pinned / name, Path(scratch, name))
            command = [needed("npm"), "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(command, cwd=scratch, check=True, capture_output=True)
            made = Path(scratch, "made")
            made.mkdir()
            os.rename(Path(scratch, "node_modules"), made / "node_modules")
            with contextlib.suppress(OSError):  # another test process was faster
                os.rename(made, directory)
    return directory
