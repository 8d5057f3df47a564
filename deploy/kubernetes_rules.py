"""Writes the alert rules of deploy/alerts.yml as the PrometheusRule of deploy/kubernetes/monitoring."""

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
_HEAD = """\
# The rules of deploy/alerts.yml for Prometheus' operator, written by `python deploy/kubernetes_rules.py`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: carillon
spec:
"""


def main() -> None:
    lines = (_FOLDER / "alerts.yml").read_text().splitlines()
    rules = lines[lines.index("groups:") :]
    text = _HEAD + "\n".join(f"  {line}" if line else "" for line in rules) + "\n"
    (_FOLDER / "kubernetes/monitoring/rules.yaml").write_text(text)


if __name__ == "__main__":
    main()
