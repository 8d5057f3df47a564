"""Which tokens that Apple calls bad are removed, and when the fault is that of the app's settings."""

import pytest

from services.delivery.ios import bad_tokens
from services.delivery.ios.bad_tokens import BadTokens
from services.runtime.process.clock import ManualClock
from services.runtime.process.metrics import APNS_MOSTLY_BAD

HOUR_S = 3600
START_MS = 1_800_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def tokens(clock: ManualClock) -> BadTokens:
    """An app some of whose other pushes Apple has accepted."""
    tokens = BadTokens(clock)
    for number in range(100, 110):
        tokens.accepted(f"t{number}", 0, number)
    return tokens


def apps_with_bad_tokens() -> float:
    (metric,) = APNS_MOSTLY_BAD.collect()
    return metric.samples[0].value


def test_a_token_is_removed_when_it_is_called_bad_again_after_a_day(clock: ManualClock, tokens: BadTokens) -> None:
    assert tokens.refused("a", 0, 1) is None
    clock.move(24 * HOUR_S - 1)
    assert tokens.refused("a", 0, 1) is None
    clock.move(1)
    assert tokens.refused("b", 0, 2) is None
    assert tokens.refused("a", 0, 1) == START_MS
    assert tokens.refused("a", 0, 1) is None  # once


def test_devices_of_other_partitions_have_the_same_numbers(clock: ManualClock, tokens: BadTokens) -> None:
    tokens.refused("a", 1, 100)
    clock.move(24 * HOUR_S)
    assert tokens.refused("a", 1, 100) == START_MS


def test_an_accepted_push_clears_a_token_for_good(clock: ManualClock, tokens: BadTokens) -> None:
    tokens.refused("a", 0, 1)
    tokens.accepted("a", 0, 1)
    for _ in range(3):
        clock.move(30 * HOUR_S)
        tokens.accepted("t100", 0, 100)
        tokens.accepted("t101", 0, 101)
        assert tokens.refused("a", 0, 1) is None


def test_nothing_is_removed_where_most_are_called_bad(clock: ManualClock) -> None:
    """One device has a build for this environment."""
    tokens = BadTokens(clock)
    before = apps_with_bad_tokens()
    for _ in range(4):
        tokens.accepted("good", 0, 0)
        assert [tokens.refused(f"t{number}", 0, number) for number in range(1, 50)] == [None] * 49
        assert tokens.is_mostly_bad
        assert apps_with_bad_tokens() == before + 1
        clock.move(25 * HOUR_S)
    for _ in range(300):  # the environment was mended
        tokens.accepted("t1", 0, 1)
    assert not tokens.is_mostly_bad
    assert apps_with_bad_tokens() == before


def test_a_few_bad_tokens_say_nothing_of_the_app(clock: ManualClock) -> None:
    tokens = BadTokens(clock)
    assert [tokens.refused(f"t{number}", 0, number) for number in range(3)] == [None] * 3
    assert not tokens.is_mostly_bad


def test_answers_count_for_two_periods(clock: ManualClock, tokens: BadTokens) -> None:
    clock.move(49 * HOUR_S)
    for number in range(4):
        tokens.refused(f"t{number}", 0, number)
    assert tokens.is_mostly_bad
    tokens.close()
    assert not tokens.is_mostly_bad


def test_remembered_tokens_are_bounded(clock: ManualClock, tokens: BadTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_tokens, "MAX_SUSPECTS", 1)
    tokens.refused("a", 0, 1)
    tokens.refused("b", 0, 2)
    clock.move(24 * HOUR_S)
    assert [tokens.refused("b", 0, 2), tokens.refused("a", 0, 1)] == [None, START_MS]
    assert tokens.refused("b", 0, 2) is None
    clock.move(24 * HOUR_S)
    for _ in range(9):
        tokens.accepted("t100", 0, 100)
    assert tokens.refused("b", 0, 2) == START_MS + 24 * HOUR_S * 1000
