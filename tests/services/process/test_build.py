"""The commit of the running code: read from a checkout without git, or from the file that an image has."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from carillon.main import main
from services.process import build
from services.process.build import Build, head
from testkit.repository import ROOT


def git(directory: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    command = ["git", *settings, *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_a_checkout_is_found_on_a_branch_packed_detached_and_in_a_worktree(tmp_path: Path) -> None:
    checkout, other = tmp_path / "checkout", tmp_path / "other"
    checkout.mkdir()
    assert head(checkout) == ""
    git(checkout, "init")
    assert head(checkout) == ""
    git(checkout, "commit", "--allow-empty", "-m", "a")
    commit = git(checkout, "rev-parse", "HEAD")
    assert head(checkout) == commit
    git(checkout, "worktree", "add", str(other))
    git(other, "commit", "--allow-empty", "-m", "b")
    second = git(other, "rev-parse", "HEAD")
    assert (head(checkout), head(other)) == (commit, second)
    git(checkout, "pack-refs", "--all")
    assert (head(checkout), head(other)) == (commit, second)
    git(checkout, "checkout", "--detach")
    assert head(checkout) == commit


def test_the_version_names_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "COMMIT"
    noted.write_text("0123456789abcdef0123456789abcdef01234567\n")
    monkeypatch.setattr(build, "_FILE", noted)
    build.build.cache_clear()
    try:
        assert build.build() == Build(version("carillon"), "0123456789ab")
        shown = CliRunner().invoke(main, ["--version"])
        assert shown.output == f"carillon, version {version('carillon')} (commit 0123456789ab)\n"
    finally:
        build.build.cache_clear()
    assert str(Build("1.0", "")) == "1.0"


def test_the_image_is_built_with_the_commit() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "ARG COMMIT\n" in dockerfile
    assert "> services/process/COMMIT" in dockerfile
