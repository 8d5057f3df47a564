"""The ledger test, for half a minute: pushes of every kind under faults; none is lost, none is shown twice.

With roles and a broker it runs before a release alone: in `make test-long`, `test_cluster` kills both and checks the
same.
"""

import asyncio
from pathlib import Path

import pytest

from testkit.kafka.broker import kafka
from tests.soak.plan import Plan
from tests.soak.run import Soak, soak


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_one_process_is_killed_while_pushes_are_sent(tmp_path: Path) -> None:
    _assert_no_violations(soak(Plan(seconds=20, devices=10, rate=10, seed=7), tmp_path))


@pytest.mark.long
@pytest.mark.seeds
@pytest.mark.kafka
@pytest.mark.timeout(1200)
def test_roles_and_the_broker_are_killed_while_pushes_are_sent(tmp_path: Path) -> None:
    with kafka(tmp_path / "kafka") as broker:
        _assert_no_violations(soak(Plan(seconds=15, devices=10, rate=10, seed=7), tmp_path, broker))


def _assert_no_violations(run: Soak) -> None:
    verdict = asyncio.run(run.run())
    assert not verdict.violations, "\n".join([*map(str, verdict.violations), *verdict.timelines])
    assert all(verdict.counts[name] for name in ("faults", "accepted", "shown"))
