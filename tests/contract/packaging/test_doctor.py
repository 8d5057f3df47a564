"""`make doctor`: its findings on machines that lack programs, simulated by a PATH of the test."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from carillon.roles import role_definition
from services.domain.settings import PREFIX
from setup import doctor, python_version
from testkit.ports import free_ports
from testkit.repository import ROOT

PROGRAMS = {
    "java": "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2",
    "mvn": "",
    "node": "echo v20.20.2",
    "npx": "",
    "chromium": "",
    "haproxy": "",
    "promtool": "",
    "php": "",
    "curl": "",
    "openssl": "",
    "apt-get": "",
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with every program that is looked for."""
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def examine(programs: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """Run the doctor with these programs and free ports; return its exit code and what it printed."""
    ports = dict(zip(doctor.PORTS, map(str, free_ports(len(doctor.PORTS))), strict=True))
    ended = subprocess.run(
        [sys.executable, "-m", "setup.doctor", *arguments],
        cwd=ROOT,
        env={**ports, "PATH": str(programs), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == ""
    return ended.returncode, ended.stdout


def examined(programs: Path, **env: str) -> tuple[int, dict[str, Any], dict[str, bool]]:
    """Return the exit code, the checks that failed by name, and what is ready."""
    code, text = examine(programs, "--json", **env)
    answer = json.loads(text)
    return code, {one["name"]: one for one in answer["checks"] if not one["is_ok"]}, answer["ready"]


def test_each_missing_program_is_named_with_its_purpose_and_a_command(programs: Path) -> None:
    code, missing, ready = examined(programs)
    assert (code, missing.keys() - {"open files, 65536"}, ready) == (0, set(), {"make run": True, "make test": True})
    (programs / "node").write_text("#!/bin/sh\necho v18.20.4\n")
    for name in ("java", "mvn", "npx", "chromium"):
        (programs / name).unlink()
    code, missing, ready = examined(programs)
    names = {"Java 17 or newer", "Maven", "Node.js 20 or newer", "npx", "a browser"}
    assert (code, missing.keys() - {"open files, 65536"}) == (0, names)
    assert ready == {"make run": True, "make test": False}
    assert all(one["needed_for"] and one["fix"] for one in missing.values())
    assert missing["Maven"]["fix"] == "apt-get install maven"
    assert missing["Node.js 20 or newer"]["found"] == "node 18"


def test_a_used_port_is_named_with_the_setting_that_moves_it(programs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, text = examine(programs, CARILLON_V2_PORT=str(port))
    assert code == 1
    lines = text.splitlines()
    at = next(index for index, line in enumerate(lines) if f"port {port}" in line)
    assert lines[at].startswith("MISSING")
    assert "needed for make run" in lines[at + 1]
    assert f"sport = :{port}" in lines[at + 2]
    assert "CARILLON_V2_PORT=" in lines[at + 2]
    assert lines[-2:] == ["make run: 1 missing", "make test: ready"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which process listens")
@pytest.mark.parametrize(("name", "is_ok"), [("carillon", True), ("nginx", False)])
def test_a_port_of_a_running_carillon_is_not_missing(programs: Path, tmp_path: Path, name: str, is_ok: bool) -> None:
    script = tmp_path / name
    script.write_text(
        "import socket, sys\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, str(script), "up"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        code, text = examine(programs, "--json", CARILLON_V2_PORT=port)
        process.kill()
    found = {one["name"]: one for one in json.loads(text)["checks"]}[f"port {port}"]
    assert (code, found["is_ok"]) == (0 if is_ok else 1, is_ok)
    assert f"process {process.pid}" in found["found"]
    assert is_ok or f"{script} up" in found["found"]


def test_the_ports_are_those_of_the_settings() -> None:
    fields = [field for role in ("edge", "gateway") for field in msgspec.structs.fields(role_definition(role).settings)]
    ports = {PREFIX + field.name.upper(): field.default for field in fields if field.name.endswith("_port")}
    assert {name: port for name, port in ports.items() if type(port) is int} == doctor.PORTS


def test_too_few_open_files_are_named(programs: Path) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -n 1000 && {sys.executable} -m setup.doctor"],
        cwd=ROOT, env={**os.environ, "PATH": str(programs)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "hard limit 1000" in ended.stdout
    assert "limits.d" in ended.stdout


def test_a_python_that_cannot_run_carillon_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    monkeypatch.setattr(python_version, "other_python", lambda: "")
    python = doctor.python_check()
    assert not python.is_ok
    assert "Carillon needs Python 3.11 to 3.14" in python.fix
