"""The ledger test on a cluster, with a few of the faults of `make cluster`: nothing is lost, nothing is shown twice."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from testkit.installation.balancer import HAPROXY
from testkit.kafka.broker import skip_without_kafka
from tests.soak.cluster.__main__ import main
from tests.soak.cluster.run import plan, run

FAULTS = ("restart edge", "kill scheduling", "cut off delivery")


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(1200)
@pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed: apt-get install haproxy")
def test_processes_of_a_cluster_are_restarted_killed_and_cut_off_while_pushes_are_sent(tmp_path: Path) -> None:
    skip_without_kafka()
    found = asyncio.run(run(plan(seconds=30, devices=40, rate=10, seed=7), tmp_path, FAULTS))
    verdict = found.verdict
    assert not verdict.violations, "\n".join([*map(str, verdict.violations), *verdict.timelines])
    assert [row.fault for row in found.rows] == list(FAULTS)
    for row in found.rows:
        assert (row.lost, row.doubled) == (0, 0), row
        assert min(row.answered, row.due) > 0, row


def test_an_upgrade_needs_a_commit_of_this_clone() -> None:
    done = CliRunner().invoke(main, ["--from", "0" * 40])
    assert done.exit_code == 2
    assert "git fetch --unshallow" in done.output
