"""Calls that failed while nothing was broken are found."""

from types import SimpleNamespace
from typing import cast

import pytest

from tests.simulation.backends.fact_checks import failed_while_calm
from tests.simulation.backends.ledger import FailedCall, Ledger
from tests.simulation.kernel.clock import START_MS
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.model.outages import Outages

_TAIL_S = 2.0
_OUTAGES = Outages([], [Fault(10.0, "log_unavailable", amount=5.0)], _TAIL_S)


@pytest.mark.parametrize(
    ("begun_s", "ended_s", "is_found"),
    [
        (8.0, 9.0, True),
        (9.0, 9.0, True),
        (9.0, 11.0, False),
        (11.0, 12.0, False),
        (16.0, 16.0, False),
        (16.0, 18.0, False),
        (17.5, 18.0, True),
    ],
)
def test_a_call_may_fail_only_where_something_is_or_lately_was_broken(
    begun_s: float, ended_s: float, is_found: bool
) -> None:
    assert _is_found(_OUTAGES, begun_s, ended_s) is is_found


def test_a_first_start_explains_failed_calls_for_a_shorter_time() -> None:
    host = cast(RoleHost, SimpleNamespace(name="registry-0", outages=[(0.0, 0.3), (5.0, 6.0)]))
    outages = Outages([host], [], _TAIL_S)
    assert [_is_found(outages, at_s, at_s) for at_s in (0.2, 1.2, 1.4, 5.5, 7.9, 8.1)] == [
        *(False, False, True),
        *(False, False, True),
    ]


def _is_found(outages: Outages, begun_s: float, ended_s: float) -> bool:
    begun_ms, ended_ms = (START_MS + int(1000 * at_s) for at_s in (begun_s, ended_s))
    ledger = Ledger(failed_calls=[FailedCall("push", begun_ms, ended_ms, "UnavailableError()")])
    return bool(failed_while_calm(ledger, outages))
