"""`setup.test_programs`: what it installs and what it says, on machines of a PATH of the test."""

import os
from pathlib import Path

import pytest

from setup import test_programs

OF_ANDROID = ("aapt2", "zipalign", "apksigner")
HERE = ("java", "mvn", "node", "npx", "npm", "chromium", "haproxy", "promtool", "php", "curl", "openssl", *OF_ANDROID)
VERSIONS = {"java": "openjdk version 17.0.15", "node": "v24.1.0"}


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every program that the tests need, which is the whole path; the user is root."""
    for name in HERE:
        put(tmp_path, name, f"echo {VERSIONS.get(name, '')}")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CARILLON_TEST_INSTALL", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_nothing_is_done_where_nothing_is_missing(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(programs, "apt-get", f"echo called > {programs}/called")
    assert test_programs.main(["--all"]) == 0
    assert capsys.readouterr().err == ""
    assert not (programs / "called").exists()


def test_root_installs_what_is_missing(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("haproxy", "promtool"):
        (programs / name).rename(programs / f"{name}.package")
    installs = f"[ $1 = update ] || /bin/mv {programs}/haproxy.package {programs}/haproxy"
    put(programs, "apt-get", f'echo "$@" >> {programs}/called; {installs}; {installs.replace("haproxy", "promtool")}')
    assert test_programs.main(["--all"]) == 0
    assert capsys.readouterr().err == "Installing what the tests need: haproxy prometheus\n"
    update, install = (programs / "called").read_text().splitlines()
    assert (update.split()[0], install.split()[0], install.split()[-2:]) == (
        "update",
        "install",
        ["haproxy", "prometheus"],
    )


def test_what_cannot_be_installed_is_named_with_the_reason_and_a_command(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (programs / "haproxy").unlink()
    expected = "make test (the proxy's settings): left out, because haproxy is missing, and {}. To run it: {} haproxy\n"

    def said(reason: str, command: str = "apt-get install") -> None:
        assert test_programs.main([]) == 0
        assert capsys.readouterr().err.endswith(expected.format(reason, command))
        assert test_programs.main(["--all"]) == 1
        capsys.readouterr()

    said("this machine has neither apt-get nor dnf")
    put(programs, "apt-get", "echo 'W: old' >&2; echo 'E: no such package' >&2; exit 100")
    said("apt-get failed: E: no such package")
    monkeypatch.setenv("CARILLON_TEST_INSTALL", "no")
    said("CARILLON_TEST_INSTALL=no forbids to install it")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said("only root may install it")


@pytest.mark.parametrize("name", OF_ANDROID)
def test_with_all_the_long_test_of_an_apk_is_not_left_out_in_silence(
    programs: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (programs / name).unlink()
    assert test_programs.main([]) == 0
    assert capsys.readouterr().err == ""
    assert test_programs.main(["--all"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("make test-long (the APK of the sample app for Android): left out")
    installs = f"[ $1 = update ] || /bin/cp {programs}/mvn {programs}/{name}"
    put(programs, "apt-get", f'echo "$@" > {programs}/called; {installs}')
    assert test_programs.main(["--all"]) == 0
    assert (programs / "called").read_text().split()[-1] == {"aapt2": "aapt"}.get(name, name)


@pytest.mark.parametrize("lack", ["node", "npx"])
def test_node_comes_from_a_package_where_it_is_too_old_or_has_no_npx(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lack: str
) -> None:
    def install(root: Path) -> None:
        put(programs, "node", "echo v24.1.0")
        put(programs, "npx", "")

    if lack == "node":
        put(programs, "node", "echo v18.20.4")
    else:
        (programs / "npx").unlink()
    monkeypatch.setattr(test_programs, "install_node", install)
    assert test_programs.main(["--all"]) == 0
    assert capsys.readouterr().err == ""


def test_each_missing_program_has_the_reason_of_its_own_source(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("node", "haproxy"):
        (programs / name).unlink()

    def fail(root: Path) -> None:
        raise OSError("no network")

    monkeypatch.setattr(test_programs, "install_node", fail)
    assert test_programs.main([]) == 0
    of_node, of_haproxy = capsys.readouterr().err.splitlines()
    assert "pip did not install it: no network" in of_node
    assert "neither apt-get nor dnf" in of_haproxy
