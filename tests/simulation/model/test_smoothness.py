"""Calls of app servers that failed or took long are violations; those that were carried out or refused are not."""

import pytest

from tests.simulation.model.smoothness import FinishedCall, noticed


@pytest.mark.parametrize(
    ("took_s", "result", "is_noticed"),
    [(1.0, "0", False), (1.01, "0", True), (0.1, "400", False), (0.1, "500", True), (0.1, "ReadError('killed')", True)],
)
def test_a_failed_or_slow_call_is_noticed(took_s: float, result: str, is_noticed: bool) -> None:
    assert bool(list(noticed([FinishedCall("POST /v2/push", 3.0, took_s, result)]))) is is_noticed
