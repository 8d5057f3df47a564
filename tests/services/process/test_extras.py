"""Processes without the packages of the extra `embedded`: only analytics needs them, and says how to get them."""

import os
import subprocess
from pathlib import Path

import pytest

from analytics.settings import AnalyticsSettings
from services.domain.settings import SettingsError, load
from services.process.build import EMBEDDED_PACKAGES
from testkit.installation.processes import CARILLON
from testkit.installation.without_embedded import without_embedded
from tests.contract.packaging.container_files import PROJECT

ADVICE = (
    "Run: pip install 'carillon[embedded]', or in a checkout: make install, or with containers: the image"
    " carillon-embedded"
)


def test_analytics_without_pyarrow_says_how_to_get_it(tmp_path: Path) -> None:
    """`serve` with a wrong setting too, for which the settings of every role are imported."""
    env = {**os.environ, **without_embedded(tmp_path / "without_embedded"), "CARILLON_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    for role, extra, said in (
        ("analytics", {}, f"the role analytics needs the package pyarrow, which is not installed. {ADVICE}"),
        ("edge", {"CARILLON_V2_PROT": "1"}, "CARILLON_V2_PROT is no setting: use CARILLON_V2_PORT"),
    ):
        command = [CARILLON, "serve", role]
        ended = subprocess.run(command, env={**env, **extra}, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr


def test_only_a_store_in_the_process_needs_chdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analytics.settings.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="analytics without CARILLON_CLICKHOUSE_URL needs the package chdb"):
        load(AnalyticsSettings, {})
    load(AnalyticsSettings, {"CARILLON_CLICKHOUSE_URL": "http://u:p@127.0.0.1:8123/carillon"})


def test_the_extra_has_these_packages() -> None:
    extra = PROJECT["project"]["optional-dependencies"]["embedded"]
    assert tuple(requirement.partition(">")[0] for requirement in extra) == EMBEDDED_PACKAGES
