"""deploy/systemd: the units are valid, and every setting in the environment files exists and is accepted."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from carillon.commands.acls import PASSWORD_FILE
from carillon.environment import check_names
from carillon.roles import ROLES, role_definition
from carillon.serve import own_address
from services.domain import settings as common_settings
from services.domain.master_key import KeyPurpose
from services.domain.role_context import DEFAULT_ADDRESSES
from services.domain.settings import PREFIX, load
from services.gateway import settings as gateway_settings
from testkit.certificates import Authority
from testkit.persons import READERS_AND_WRITERS
from testkit.repository import ROOT

FOLDER = ROOT / "deploy/systemd"
UNITS = ("carillon.service", "carillon@.service")
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")
PAGE = (ROOT / "docs/operators/systemd.md").read_text()


def variables(file: str) -> dict[str, str]:
    """Return the variables of an environment file, as systemd reads them."""
    lines = [line for line in (FOLDER / file).read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.partition("=") for line in lines]
    assert len({name for name, _, _ in pairs}) == len(pairs)
    return {name: value for name, _, value in pairs}


def of_role(role: str) -> dict[str, str]:
    common, own = variables("carillon.env"), variables(f"roles/{role}.env")
    assert not common.keys() & own.keys()
    return common | own


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that loads settings as on a host that has the files and many open files."""
    tls = Authority(tmp_path / "authority").issue("any")
    password = tmp_path / PASSWORD_FILE
    password.write_text("secret\n")
    names = {"tls.crt": tls.certificate, "tls.key": tls.key, "ca.crt": tls.authority, PASSWORD_FILE: password}
    for module in (common_settings, gateway_settings):
        monkeypatch.setattr(module, "hard_file_limit", lambda: 524_288)

    def load_as(role: str, env: Mapping[str, str]) -> Any:
        found = {name: str(names.get(value.rpartition("/")[2], value)) for name, value in env.items()}
        return load(role_definition(role).settings, found)

    return load_as


@pytest.mark.parametrize("role", ROLES)
def test_every_setting_of_a_role_exists_and_is_accepted(role: str, loaded: Any) -> None:
    env = of_role(role)
    check_names(env)
    fields = {PREFIX + field.name.upper() for field in msgspec.structs.fields(role_definition(role).settings)}
    assert env.keys() <= fields | {f"{PREFIX}{other.upper()}_ADDR" for other in DEFAULT_ADDRESSES}
    settings = loaded(role, env)
    assert settings.kafka_sasl_user == f"carillon-{role}"
    files = {KeyPurpose.DEVICES: settings.device_keys_file, KeyPurpose.SECRETS: settings.secrets_key_file}
    assert {purpose for purpose, file in files.items() if file} == role_definition(role).keys
    assert bool(settings.signing_key_file) == (role in ("registry", "accounts"))
    assert bool(settings.persons_key_file) == (role in READERS_AND_WRITERS)
    if role in DEFAULT_ADDRESSES:
        assert own_address(role, settings, env) == f"a.example.com:{DEFAULT_ADDRESSES[role].rpartition(':')[2]}"


def test_the_settings_of_one_process_exist_and_are_accepted(loaded: Any) -> None:
    env = variables("up.env")
    check_names(env)
    for role in ROLES:
        loaded(role, env)


def test_the_roles_of_a_host_have_ports_of_their_own(loaded: Any) -> None:
    ports = [int(env[f"{PREFIX}CONSOLE_PORT"]) for env in map(of_role, ROLES)]
    edge, gateway, console = (loaded(role, of_role(role)) for role in ("edge", "gateway", "console"))
    ports += [*edge.interface_ports, gateway.gateway_port, console.metrics_port]
    ports += [int(address.rpartition(":")[2]) for address in DEFAULT_ADDRESSES.values()]
    assert len(set(ports)) == len(ports)


def test_a_standby_finds_its_own_address_in_a_comment() -> None:
    for role in ("registry", "targeting", "scheduling", "delivery"):
        text = (FOLDER / f"roles/{role}.env").read_text()
        (given,) = re.findall(r"^# .*: (CARILLON_\w+_ADDR)=b\.example\.com:(\d+)$", text, re.MULTILINE)
        assert given == (f"{PREFIX}{role.upper()}_ADDR", DEFAULT_ADDRESSES[role].rpartition(":")[2])


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is not installed: apt-get install systemd")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = tmp_path / "carillon"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS:
        text = (FOLDER / unit).read_text()
        assert "/opt/carillon/.venv/bin/carillon " in text
        page = tmp_path / "systemd.md"
        text = text.replace("/opt/carillon/.venv/bin/carillon", str(program)).replace("User=carillon", "User=root")
        (tmp_path / unit).write_text(text.replace("/opt/carillon/docs/operators/systemd.md", str(page)))
    for name in ("carillon.service", "carillon@registry.service"):
        command = [str(SYSTEMD_ANALYZE), "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={"SYSTEMD_LOG_LEVEL": "warning"}
        )
        ours = [line for line in (done.stdout + done.stderr).splitlines() if "carillon" in line]
        assert (done.returncode, ours) == (0, [])


def test_the_units_start_what_exists_with_the_files_that_exist_and_wait_for_a_stop(loaded: Any) -> None:
    for unit in UNITS:
        text = (FOLDER / unit).read_text()
        (command,) = re.findall(r"^ExecStart=\S+/carillon (.*)$", text, re.MULTILINE)
        assert command == ("up" if unit == "carillon.service" else "serve %i")
        (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
        assert int(stop_s) >= 60 + loaded("edge", of_role("edge")).drain_s
        assert "KillMode=mixed" in text, "a child that is killed first would leave its parent's work undone"
        files = re.findall(r"^EnvironmentFile=/etc/carillon/(.*)$", text, re.MULTILINE)
        wanted = ["up.env"] if unit == "carillon.service" else ["carillon.env", "%i.env"]
        assert files == wanted
    assert sorted(file.stem for file in (FOLDER / "roles").glob("*.env")) == sorted(ROLES)


def test_the_page_names_every_file() -> None:
    for name in (*UNITS, "up.env", "carillon.env", "roles/"):
        assert name in PAGE
