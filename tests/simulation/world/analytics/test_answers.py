"""What a real store answers about a world is what happened in it, and a store that lacks rows is found."""

from functools import partial

import pytest

from tests.simulation.kernel.running import Outcome, run_world, run_worlds
from tests.simulation.planted.edit import Edit, planted
from tests.simulation.world.plan import EVERY_ROLE, Plan
from tests.simulation.world.run import InstallationWorld

WORLD = InstallationWorld(
    Plan(
        partitions=2,
        processes=dict.fromkeys(EVERY_ROLE, 1),
        devices=3,
        rate=0.3,
        load_s=100.0,
        snapshot_s=300,
        has_ios=True,
        pace=5.0,
        asks_real_store=True,
    )
)
REPEATED = "self.requests.append(Request(table, {}, rows, token))"


def outcome(edits: list[Edit]) -> Outcome:
    with planted(edits):
        (found,) = run_worlds([partial(run_world, WORLD, 1, [])])
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
def test_statistics_and_acknowledgements_are_what_happened() -> None:
    assert outcome([]).findings == []


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("table", "finding"),
    [
        ("pushes", "clickhouse: the push is not exactly once"),
        ("push_partitions", "clickhouse: audience"),
        ("deliveries", "clickhouse: outcomes"),
        ("acks", "answers: acknowledgements"),
        ("sessions", "answers: log-ins"),
        ("registrations", "answers: users"),
        ("connection_counts", "answers: connections"),
    ],
)
def test_a_store_without_the_rows_of_a_table_is_found(table: str, finding: str) -> None:
    lacking = f"{REPEATED} if table != {table!r} else None"
    found = outcome([Edit("tests.simulation.world.analytics.store:ModelStore._insert", REPEATED, lacking)])
    assert any(text.startswith(finding) for text in found.findings), found.findings
