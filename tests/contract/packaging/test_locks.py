"""requirements/*.lock agrees with pyproject.toml, holds for every supported Python, and is what installations use."""

import re
import runpy
import tomllib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from setup.install import pip_arguments
from testkit.repository import ROOT
from tests.contract.packaging.container_files import PROJECT, dockerfile

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROCESSORS = ("x86_64", "aarch64")
LOCK = runpy.run_path(str(ROOT / "requirements/lock.py"))
SDK = tomllib.loads((ROOT / "sdk/pyproject.toml").read_text())["project"]["dependencies"]
_OTHERS = [text for text in PROJECT["project"]["dependencies"] if not text.startswith(LOCK["OF_THIS_REPOSITORY"])]
RUNTIME = [*_OTHERS, *SDK]
BUILD = PROJECT["build-system"]["requires"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKED = {
    "runtime": RUNTIME,
    "build": BUILD,
    "embedded": [*RUNTIME, *EXTRAS["embedded"]],
    "dev": [*RUNTIME, *EXTRAS["embedded"], *BUILD, *EXTRAS["dev"]],
    "tools": EXTRAS["tools"],
    "node": EXTRAS["node"],
}
AUDIT = runpy.run_path(str(ROOT / "requirements/audit.py"))


class Locked(NamedTuple):
    """A package of a lock file, with the hashes of its files."""

    requirement: Requirement
    hashes: list[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        assert specifier.operator == "=="
        return specifier.version


def locked(name: str) -> list[Locked]:
    text = (ROOT / f"requirements/{name}.lock").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    return [Locked(Requirement(line.partition(" --hash=")[0]), re.findall(r"--hash=(\S+)", line)) for line in lines]


def environments() -> Iterator[dict[str, str]]:
    """Yield the marker environments of every supported Python and processor."""
    for python in PYTHONS:
        for processor in PROCESSORS:
            own = {"python_version": python, "python_full_version": f"{python}.5", "platform_machine": processor}
            yield {**default_environment(), **own}  # type: ignore[dict-item]


def versions(name: str, environment: dict[str, str]) -> dict[str, str]:
    """Return the version of each package that pip installs in this environment; a package may occur once."""
    found = [
        one for one in locked(name) if one.requirement.marker is None or one.requirement.marker.evaluate(environment)
    ]
    chosen = {one.name: one.version for one in found}
    assert len(chosen) == len(found)
    return chosen


@pytest.mark.parametrize("name", LOCKED)
def test_every_direct_dependency_is_locked_within_its_range(name: str) -> None:
    for environment in environments():
        chosen = versions(name, environment)
        for text in LOCKED[name]:
            wanted = Requirement(text)
            assert wanted.specifier.contains(chosen[canonicalize_name(wanted.name)]), (text, environment)


@pytest.mark.parametrize("name", LOCKED)
def test_every_file_has_a_hash_and_no_registry_is_named(name: str) -> None:
    for one in locked(name):
        assert one.hashes, one.name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", found) for found in one.hashes)
        assert one.requirement.url is None
    text = (ROOT / f"requirements/{name}.lock").read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links|-e ", text)


@pytest.mark.parametrize("name", ["runtime", "embedded", "build"])
def test_tests_run_with_the_versions_that_are_installed_in_production(name: str) -> None:
    for environment in environments():
        assert versions(name, environment).items() <= versions("dev", environment).items()


def test_every_lock_file_is_known_here_and_remade_by_make_lock() -> None:
    assert {path.stem for path in (ROOT / "requirements").glob("*.lock")} == set(LOCKED)
    written = set(re.findall(r'compile_lock\("(\w+)"', (ROOT / "requirements/lock.py").read_text()))
    assert written == set(LOCKED)


def test_front_ends_and_delivery_are_installed_without_the_embedded_store() -> None:
    for environment in environments():
        extra = versions("embedded", environment).keys() - versions("runtime", environment).keys()
        assert {"chdb", "pyarrow", "pandas"} <= extra


def test_every_installation_checks_hashes() -> None:
    commands = [arguments for step, arguments in dockerfile() if step == "RUN"]
    commands += (ROOT / "Makefile").read_text().splitlines()
    commands += [" ".join(["pip", *arguments]) for dev in (False, True) for arguments in pip_arguments(dev=dev)]
    installs = [one for command in commands for one in command.split("&&") if "pip install" in one]
    assert len(installs) >= 9
    for command in installs:
        assert ("--require-hashes" in command) != ("--no-deps" in command), command
    for command in (command for command in commands if "pip wheel" in command):
        assert "--no-deps" in command
        assert "--no-build-isolation" in command


def test_packages_that_could_not_be_audited_are_no_success() -> None:
    verdict: Any = AUDIT["verdict"]
    fine = {"name": "a", "version": "1", "vulns": []}
    skipped = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
    hole = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}
    bad = {"name": "c", "version": "1", "vulns": [hole]}
    assert verdict({"dependencies": [fine]}) == (0, ["none of the 1 locked packages has a known vulnerability"])
    code, lines = verdict({"dependencies": [fine, bad]})
    assert (code, lines) == (1, ["c 1: PYSEC-1, CVE-1; fixed in 2"])
    code, lines = verdict({"dependencies": [skipped, bad]})
    assert code == 2
    assert lines[0].startswith("c 1: ")
    assert "nothing is known about b." in lines[1]
    code, lines = verdict({"dependencies": [skipped, skipped]})
    assert "nothing is known about any package" in lines[0]
