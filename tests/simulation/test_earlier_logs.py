"""Worlds that begin with the log of a release: the roles read it and go on, and one that does not is found."""

from itertools import count, islice

import pytest

from services.domain.topics import DEVICES
from services.log.port import Record
from services.replica.catch_up import CatchUp
from testkit.repository import ROOT
from tests.simulation.backends.earlier_logs import store, versions
from tests.simulation.backends.plan import plan_of
from tests.simulation.backends.world import Backends
from tests.simulation.kernel.clock import START_MS
from tests.simulation.kernel.running import run_world

SEEDS = list(islice((seed for seed in count() if plan_of(seed).begins_with), 2))


def test_each_release_has_stored_a_log_and_none_is_replaced() -> None:
    schemas = (ROOT / ".ci/released_schemas").glob("*.binpb")
    assert versions() == sorted(path.stem for path in schemas)
    with pytest.raises(FileExistsError):
        store(versions()[0], [])


def test_roles_go_on_with_the_log_of_a_release() -> None:
    for seed in SEEDS:
        assert run_world(Backends(), seed, []).findings == []


def test_a_role_that_does_not_read_records_of_a_release_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = CatchUp._apply

    def without_old_devices(catch_up: CatchUp, record: Record) -> object:
        envelope = catch_up._topics[record.topic].envelope.FromString(record.value)
        is_old = record.topic == DEVICES.name and envelope.meta.time_ms < START_MS  # type: ignore[attr-defined]
        return envelope.meta if is_old else fold(catch_up, record)  # type: ignore[attr-defined]

    monkeypatch.setattr(CatchUp, "_apply", without_old_devices)
    assert any(finding.startswith("state: ") for finding in run_world(Backends(), SEEDS[0], []).findings)
