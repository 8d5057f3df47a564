"""deploy/alerts.yml: every rule fires on made-up series in time, and uses metrics that the service exports."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from services.process import metrics
from testkit.programs import installed
from testkit.repository import ROOT
from tests.contract.packaging.alert_cases import CASES, Case
from tests.contract.packaging.container_files import configs

FILE = ROOT / "deploy/alerts.yml"
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
BY_NAME = {rule["alert"]: rule for rule in RULES}
RUNBOOK = ROOT / "docs/operators/alerts.md"
PROMTOOL = installed("promtool")
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"], "info": ["_info"]}
OF_PROMETHEUS = {"up": {"job", "instance"}}
OF_THE_SCRAPE = {"job", "instance", "worker", "le"}
SELECTOR = re.compile(r"\b((?:carillon|process)_\w+|up)\b(?:\{([^}]*)\})?")


def promtool_test(name: str, case: Case) -> dict[str, Any]:
    """Return a unit test as `promtool test rules` reads it."""
    rule = BY_NAME[name]
    fired = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {"summary": case.summary, "runbook": rule["annotations"]["runbook"]},
    }
    return {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.quiet_m}m", "alertname": name, "exp_alerts": []},
            {"eval_time": f"{case.fires_m}m", "alertname": name, "exp_alerts": [fired]},
        ],
    }


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.long
def test_every_rule_fires_and_not_too_soon(tmp_path: Path) -> None:
    assert CASES.keys() == BY_NAME.keys()
    tests = [promtool_test(name, case) for name, case in CASES.items()]
    file = tmp_path / "alerts.test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}))
    for command in (["check", "rules", str(FILE)], ["test", "rules", str(file)]):
        done = subprocess.run([str(PROMTOOL), *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def exported() -> dict[str, set[str]]:
    """Return the labels of every series that a process can export, by its name."""
    labels = {
        metric._name: {*metric._labelnames} for metric in vars(metrics).values() if hasattr(metric, "_labelnames")
    }
    assert all(isinstance(metric, MetricWrapperBase) for metric in vars(metrics).values() if hasattr(metric, "_name"))
    return {
        family.name + suffix: labels.get(family.name, set())
        for family in REGISTRY.collect()
        for suffix in SUFFIXES.get(family.type, [])
    }


@pytest.mark.parametrize("name", BY_NAME)
def test_every_metric_and_label_is_exported(name: str) -> None:
    known = OF_PROMETHEUS | exported()
    expression = BY_NAME[name]["expr"]
    selected = SELECTOR.findall(expression)
    assert selected
    labels: set[str] = set()
    for metric, matchers in selected:
        assert metric in known, metric
        labels |= known[metric] | OF_THE_SCRAPE
        assert set(re.findall(r"(\w+)[=!]", matchers)) <= known[metric] | OF_THE_SCRAPE
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    assert grouped <= labels


def test_counters_have_no_series_with_the_time_of_their_making() -> None:
    metrics.APPENDED.labels("a topic").inc()
    assert not [sample.name for family in REGISTRY.collect() for sample in family.samples if "_created" in sample.name]


def test_every_rule_has_a_severity_a_summary_and_a_passage_in_the_runbook() -> None:
    assert len(BY_NAME) == len(RULES)
    passages = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert passages == list(BY_NAME)
    for name, rule in BY_NAME.items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "runbook"}
        assert rule["annotations"]["runbook"] == f"{RUNBOOK.relative_to(ROOT)}#{name.lower()}"


def test_prometheus_reads_the_rules() -> None:
    given = configs("prometheus")
    (pattern,) = yaml.safe_load(given["/etc/prometheus/prometheus.yml"].read_text())["rule_files"]
    assert given[pattern] == FILE
