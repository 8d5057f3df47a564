"""Compares the locked packages of an installation with the known vulnerabilities of PyPI's database, by pip-audit.

`make audit-dependencies` runs it. Exit code 1: a package has a known vulnerability. 2: not every package could be
compared, because the database is out of reach; pip-audit itself calls that success.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
UNREACHABLE = (
    "PyPI's database of vulnerabilities cannot be reached from here, so nothing is known about {names}. "
    "Run this where https://pypi.org can be reached; a package mirror is not enough."
)


class Verdict(NamedTuple):
    """What a report of pip-audit means: the exit code, and lines for people."""

    code: int
    lines: list[str]


def verdict(report: Mapping[str, Any]) -> Verdict:
    """Judge pip-audit's JSON report."""
    packages = report["dependencies"]
    found = [
        f"{package['name']} {package['version']}: {', '.join([one['id'], *one['aliases']])}; "
        f"fixed in {', '.join(one['fix_versions']) or 'no version yet'}"
        for package in packages
        for one in package.get("vulns", ())
    ]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped:
        names = "any package" if len(skipped) == len(packages) else ", ".join(skipped)
        found.append(UNREACHABLE.format(names=names))
        return Verdict(2, found)
    return Verdict(
        1 if found else 0, found or [f"none of the {len(packages)} locked packages has a known vulnerability"]
    )


def main() -> int:
    program = str(Path(sys.executable).parent / "pip-audit")
    arguments = ["--requirement", "requirements/embedded.lock", "--disable-pip", "--format", "json"]
    ended = subprocess.run(  # noqa: S603
        [program, *arguments, "--progress-spinner", "off"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        code, lines = verdict(json.loads(ended.stdout))
    except ValueError:
        code, lines = 2, [*ended.stderr.strip().splitlines()[-1:], UNREACHABLE.format(names="any package")]
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
