"""`testkit.maven`: which failures of Maven are tried again."""

from pathlib import Path

import pytest

from testkit import maven

REFUSED = "Could not transfer artifact org.example:a:pom:1 from/to central: status code: 403, reason phrase: Forbidden"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arguments with which Maven was called, a line each; a program of the test is called in its place."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(maven, "PAUSES_S", (0, 0))
    return tmp_path / "calls"


def says(folder: Path, said: str, attempts: int) -> None:
    """Make a Maven that fails with `said` on its first attempts, after much that its tests have printed."""
    count = f'echo "$*" >> calls\n[ "$(/usr/bin/wc -l < calls)" -gt {attempts} ] && exit 0'
    script = f'{count}\necho "{said}"; printf "%9000s" "" >&2; exit 1'
    (folder / "mvn").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "mvn").chmod(0o755)


def test_a_repository_that_refuses_is_asked_again(tmp_path: Path, calls: Path) -> None:
    says(tmp_path, REFUSED, 2)
    assert maven.maven(["package"], tmp_path, 60) == ""
    assert calls.read_text().splitlines() == ["-q -B package", "-q -B package -U", "-q -B package -U"]


def test_one_that_goes_on_refusing_is_named(tmp_path: Path, calls: Path) -> None:
    says(tmp_path, REFUSED, 9)
    assert maven.maven(["package"], tmp_path, 60).startswith(f"{REFUSED}\n")
    assert len(calls.read_text().splitlines()) == 3


def test_a_mistake_in_the_sources_is_built_once(tmp_path: Path, calls: Path) -> None:
    says(tmp_path, "Compilation failure: a.kt", 9)
    assert maven.maven(["package"], tmp_path, 60).startswith("Compilation failure: a.kt\n")
    assert len(calls.read_text().splitlines()) == 1
