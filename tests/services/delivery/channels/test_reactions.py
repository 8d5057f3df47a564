"""Retry histories and back-offs of messages to push services."""

import pytest

from services.delivery.channels import (
    DelayDevice,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
    Step,
    backoff_ms,
)

HISTORY = RetryHistory(1, frozenset({"a"}), "reset", "busy")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (RecordSent(), HISTORY),
        (RecordFailed(), HISTORY),
        (RemoveAddress(), HISTORY),
        (ResendOnce("b"), RetryHistory(1, frozenset({"a", "b"}), "reset", "busy")),
        (RetryLater(), RetryHistory(2, frozenset({"a"}), "reset", "no answer in time")),
        (RetryLater(is_unknown=True), RetryHistory(2, frozenset({"a"}), "no answer in time", "busy")),
        (DelayDevice(), RetryHistory(2, frozenset({"a"}), "reset", "no answer in time")),
    ],
)
def test_a_step_changes_the_messages_history(step: Step, expected: RetryHistory) -> None:
    assert HISTORY.apply(step, "no answer in time") == expected


def test_backoff_doubles_up_to_fifteen_minutes() -> None:
    expected = [1000, 2000, 4000, 512_000, 900_000, 900_000]
    assert [backoff_ms(retries) for retries in (1, 2, 3, 10, 11, 100)] == expected
    assert [RetryHistory(retries - 1).next_backoff_ms for retries in (1, 2, 3, 10, 11, 100)] == expected
