"""dashboards/*.json: every expression for Prometheus is valid, of metrics that exist, and counts no standby twice."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testkit.repository import ROOT
from tests.contract.packaging.test_alerts import OF_PROMETHEUS, OF_THE_SCRAPE, PROMTOOL, SELECTOR, exported

EXPRESSIONS = {
    f"{file.stem}: {panel['title']} {panel['id']}: {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
    for file in sorted((ROOT / "dashboards").glob("*.json"))
    for panel in json.loads(file.read_text())["panels"]
    for target in panel.get("targets", [])
    if "expr" in target
}
NEEDED = (
    "Processor time",
    "Memory",
    "Free disk",
    "Time behind the log",
    "Owners and standbys",
    "Differences of clocks",
)


def promtool(tmp_path: Path, command: str, content: dict[str, Any]) -> None:
    file = tmp_path / "file.yml"
    file.write_text(yaml.safe_dump(content))
    done = subprocess.run([str(PROMTOOL), *command.split(), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_metric_and_label_is_exported(name: str) -> None:
    known = OF_PROMETHEUS | exported()
    selected = SELECTOR.findall(EXPRESSIONS[name])
    assert selected
    labels: set[str] = set()
    for metric, matchers in selected:
        assert metric in known, metric
        labels |= known[metric] | OF_THE_SCRAPE
        assert set(re.findall(r"(\w+)[=!]", matchers)) <= known[metric] | OF_THE_SCRAPE
    grouped = {
        label for group in re.findall(r"(?:by|on) \(([^)]*)\)", EXPRESSIONS[name]) for label in group.split(", ")
    }
    assert grouped <= labels


def test_legends_name_labels_of_their_lines() -> None:
    for file in (ROOT / "dashboards").glob("*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", []):
                if "expr" in target:
                    grouped = {
                        label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")
                    }
                    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= grouped, panel["title"]


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_accepts_every_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"board:{number}", "expr": expression} for number, expression in enumerate(EXPRESSIONS.values())
    ]
    promtool(tmp_path, "check rules", {"groups": [{"name": "boards", "rules": rules}]})


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_what_an_owner_and_its_standby_both_count_is_shown_once(tmp_path: Path) -> None:
    """With one process, which has no owners, everything counts."""
    names = {"pushes": "operations: Active pushes 4: A", "letters": "operations: Dead letters 3: A"}
    owned = {
        'carillon_owner{instance="d-0",role="delivery",shard="0"}': "1x5",
        'carillon_owner{instance="d-1",role="delivery",shard="0"}': "0x5",
    }
    pushes = {f'carillon_delivery_pushes_active{{instance="d-{number}"}}': "70x5" for number in range(2)}
    letters = {
        f'carillon_records_dead_lettered_total{{instance="d-{number}",role="delivery"}}': "3x5" for number in range(2)
    } | {'carillon_records_dead_lettered_total{instance="e",role="apps"}': "1x5"}
    alone = {'carillon_delivery_pushes_active{instance="up"}': "70x5"}

    def case(series: dict[str, str], name: str, value: float) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": each, "values": values} for each, values in series.items()],
            "promql_expr_test": [
                {"expr": EXPRESSIONS[names[name]], "eval_time": "3m", "exp_samples": [{"labels": "{}", "value": value}]}
            ],
        }

    tests = [case(owned | pushes, "pushes", 70), case(owned | letters, "letters", 4), case(alone, "pushes", 70)]
    promtool(tmp_path, "test rules", {"rule_files": [], "evaluation_interval": "1m", "tests": tests})


def test_the_board_of_operations_shows_resources_owners_and_clocks() -> None:
    shown = {name.split(": ")[1].rpartition(" ")[0] for name in EXPRESSIONS if name.startswith("operations: ")}
    assert set(NEEDED) <= shown
