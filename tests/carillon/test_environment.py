"""Variables CARILLON_… that are no setting stop every command that reads settings."""

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from carillon.environment import check_names, environment
from carillon.main import main
from services.domain.settings import PREFIX, SettingsError
from testkit.repository import ROOT

NAME = re.compile(rf"\b{PREFIX}[A-Z0-9_]*[A-Z0-9]\b(?!_)")


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("CARILLON_PARTITION", "CARILLON_PARTITIONS"),
        ("CARILLON_GATEWAY_REGISTRATION_PER_S", "CARILLON_GATEWAY_REGISTRATIONS_PER_S"),
        ("CARILLON_TRUSTED_PROXY", "CARILLON_TRUSTED_PROXIES"),
        ("CARILLON_EDGE_WORKER", "CARILLON_EDGE_WORKERS"),
        ("CARILLON_CLICKHOUSE", "CARILLON_CLICKHOUSE_URL"),
        ("CARILLON_REGISTRY_ADDRESS", "CARILLON_REGISTRY_ADDR"),
        ("CARILLON_v2_port", "CARILLON_V2_PORT"),
        ("CARILLON_", "CARILLON_"),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_is_named(wrong: str, nearest: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{wrong} is no setting: use {nearest}") as raised:
        check_names({wrong: "", "CARILLON_HOST": "::", "PATH": "/bin"})
    assert "\n" not in str(raised.value)


def test_settings_of_every_role_and_foreign_variables_are_no_mistake() -> None:
    documented = set(NAME.findall((ROOT / "docs/operators.md").read_text())) - {"CARILLON_EDGE_PORT"}
    used = set(NAME.findall((ROOT / "docker-compose.yml").read_text()))
    assert {"CARILLON_V2_PORT", "CARILLON_GATEWAY_ACK_S", "CARILLON_APNS_URL", "CARILLON_SHARDS"} <= documented | used
    check_names(dict.fromkeys(documented | used, "x"))
    check_names({"CARILLON_TEST_CLICKHOUSE": "x", "CARILLON_CRASH_AT": "x", "MY_CARILLON_X": "x", "carillon_x": "x"})


def test_variables_of_kubernetes_services_are_no_mistake() -> None:
    port = "CARILLON_EDGE_PORT"
    link = {f"{port}_8300_TCP{end}": "x" for end in ("", "_PROTO", "_PORT", "_ADDR")}
    names = ("CARILLON_EDGE_SERVICE_HOST", "CARILLON_EDGE_SERVICE_PORT", "CARILLON_EDGE_SERVICE_PORT_V2")
    check_names({port: "tcp://10.0.0.1:8300", **link, **dict.fromkeys(names, "x")})
    with pytest.raises(SettingsError):
        check_names({port: "8300"})


def test_the_file_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    (tmp_path / ".env").write_text("CARILLON_SHARD_COUNT=3\n")
    with pytest.raises(SettingsError, match="CARILLON_SHARD_COUNT is no setting"):
        environment()


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "serve edge",
        "replay registry",
        "backup b",
        "restore b",
        "app list",
        "audit app 1",
        "device run --appkey 1",
    ],
)
def test_every_command_that_reads_settings_is_stopped(tmp_path: Path, command: str) -> None:
    env: dict[str, str | None] = {name: None for name in os.environ if name.startswith(PREFIX)}
    mask = os.umask(0)
    try:
        done = CliRunner(env={**env, "CARILLON_DATA_DIR": str(tmp_path / "data"), "CARILLON_QUOTA": "5"}).invoke(
            main, command.split()
        )
    finally:
        os.umask(mask)
    assert done.exit_code == 1
    of_the_service = command.split()[0] in ("up", "serve")
    output = f"Error: {json.loads(done.output)['error']}\n" if of_the_service else done.output
    assert re.fullmatch(r"Error: CARILLON_QUOTA is no setting: use CARILLON_\w+, or .*\n", output)
    assert not (tmp_path / "data").exists()
