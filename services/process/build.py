"""The build that runs: the version of the code, its commit, and the packages of the extra `embedded`."""

import functools
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).with_name("COMMIT")
"""A file with the commit, which the Dockerfile writes into the image; in a checkout git's own files are read."""

_SHOWN = 12


class Build(NamedTuple):
    """The version, and the first twelve characters of the commit; "" where the commit is unknown."""

    version: str
    commit: str

    def __str__(self) -> str:
        return f"{self.version} (commit {self.commit})" if self.commit else self.version


@functools.cache
def build() -> Build:
    """Return what this process was built from, read once."""
    noted = _FILE.read_text(encoding="ascii").strip() if _FILE.exists() else head(_FILE.parents[3])
    return Build(version("carillon"), noted[:_SHOWN])


def head(checkout: Path) -> str:
    """Return the commit that is checked out in a directory, or "" if it is no checkout. Git need not be installed."""
    try:
        git = checkout / ".git"
        if git.is_file():  # of `git worktree`
            git = checkout / git.read_text().removeprefix("gitdir:").strip()
        common = git / "commondir"
        shared = git / common.read_text().strip() if common.exists() else git
        text = (git / "HEAD").read_text().strip()
        if not text.startswith("ref:"):
            return text
        name = text.removeprefix("ref:").strip()
        for folder in (git, shared):
            if (folder / name).exists():
                return (folder / name).read_text().strip()
        packed = (shared / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")
    except (OSError, UnicodeDecodeError):
        return ""


# The extra `embedded`: packages that only the analytics role needs, and processes that run its embedded store.

EMBEDDED_PACKAGES = ("chdb", "pyarrow")


def missing_package(what: str, package: str) -> str:
    """Return the error of a process that needs a package of the extra and does not have it."""
    return (
        f"{what} needs the package {package}, which is not installed. Run: pip install 'carillon[embedded]',"
        " or in a checkout: make install, or with containers: the image carillon-embedded"
    )
