"""Which tokens that Apple calls bad are removed, and when the fault is that of the app's settings."""

import random
from collections.abc import Sequence

import pytest

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind
from services.delivery.outcome_recorder import OutcomeColumns
from services.delivery.state import bad_tokens
from services.delivery.state.bad_tokens import BadTokens, MostlyBad

HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000
APP = "1"
BAD = "BadDeviceToken"


def outcomes(
    time_ms: int, *, accepted: Sequence[int] = (), refused: Sequence[int] = (), reason: str = BAD
) -> AppOutcomes:
    columns = OutcomeColumns()
    for number in accepted:
        columns.add(1, number, OutcomeKind.OUTCOME_KIND_SENT, time_ms, "")
    columns.add(1, 999_999, OutcomeKind.OUTCOME_KIND_FAILED, time_ms, "removed")
    for number in refused:
        columns.add(1, number, OutcomeKind.OUTCOME_KIND_FAILED, time_ms, reason)
    (batch,) = columns.batches(APP)
    return batch


def refuse(tokens: BadTokens, time_ms: int, number: int, partition: int = 0) -> int | None:
    """Apple calls the token bad; return when it did so first, if the token is to be removed."""
    first_ms = tokens.first_refused_ms(APP, partition, number, time_ms)
    tokens.fold(partition, outcomes(time_ms, refused=[number]))
    return first_ms


@pytest.fixture
def tokens() -> BadTokens:
    """An app some of whose other pushes Apple has accepted."""
    tokens = BadTokens()
    tokens.fold(0, outcomes(START_MS, accepted=range(100, 110)))
    return tokens


def test_a_token_is_removed_when_it_is_called_bad_again_after_a_day(tokens: BadTokens) -> None:
    assert refuse(tokens, START_MS, 1) is None
    assert refuse(tokens, START_MS + 24 * HOUR_MS - 1, 1) is None
    assert refuse(tokens, START_MS + 24 * HOUR_MS, 2) is None
    assert refuse(tokens, START_MS + 24 * HOUR_MS, 1) == START_MS
    assert refuse(tokens, START_MS + 24 * HOUR_MS, 1) is None  # once


def test_each_accepted_push_counts_also_of_one_device_in_one_batch(tokens: BadTokens) -> None:
    refuse(tokens, START_MS, 1)
    now_ms = START_MS + 48 * HOUR_MS
    tokens.fold(0, outcomes(now_ms, accepted=[100, 100, 100]))
    tokens.fold(0, outcomes(now_ms, refused=[2]))
    assert refuse(tokens, now_ms, 1) == START_MS


def test_devices_of_other_partitions_have_the_same_numbers(tokens: BadTokens) -> None:
    refuse(tokens, START_MS, 100, partition=1)
    assert refuse(tokens, START_MS + 24 * HOUR_MS, 100, partition=1) == START_MS


def test_an_accepted_push_clears_a_token_for_good(tokens: BadTokens) -> None:
    refuse(tokens, START_MS, 1)
    tokens.fold(0, outcomes(START_MS, accepted=[1]))
    for days in range(1, 4):
        now_ms = START_MS + days * 30 * HOUR_MS
        tokens.fold(0, outcomes(now_ms, accepted=[100, 101]))
        assert refuse(tokens, now_ms, 1) is None


def test_nothing_is_removed_where_most_are_called_bad() -> None:
    """One device has a build for this environment."""
    tokens, told = BadTokens(), list[tuple[str, bool]]()
    tokens.watch(lambda appkey, is_bad: told.append((appkey, is_bad)))
    for day in range(4):
        now_ms = START_MS + day * 25 * HOUR_MS
        tokens.fold(0, outcomes(now_ms, accepted=[0]))
        assert [refuse(tokens, now_ms, number) for number in range(1, 50)] == [None] * 49
        assert tokens.mostly_bad(APP) == MostlyBad(START_MS, now_ms, 98 if day else 49, 2 if day else 1, BAD)
        assert told == [(APP, True)]
    tokens.fold(0, outcomes(START_MS + 4 * 25 * HOUR_MS, accepted=range(1, 300)))  # the environment was mended
    assert tokens.mostly_bad(APP) is None
    assert told == [(APP, True), (APP, False)]
    assert [refuse(tokens, START_MS + 5 * 25 * HOUR_MS, number) for number in range(300, 350)] == [None] * 50
    mended_ms = START_MS + 5 * 25 * HOUR_MS
    tokens.fold(0, outcomes(mended_ms + 48 * HOUR_MS, refused=range(350, 360)))
    assert tokens.mostly_bad(APP) == MostlyBad(mended_ms + 48 * HOUR_MS, mended_ms + 48 * HOUR_MS, 10, 0, BAD)
    tokens.unwatch()
    assert told[2:] == [(APP, True), (APP, False)]


def test_a_few_bad_tokens_say_nothing_of_the_app() -> None:
    tokens = BadTokens()
    assert [refuse(tokens, START_MS, number) for number in range(3)] == [None] * 3
    assert tokens.mostly_bad(APP) is None


def test_another_bundle_id_is_a_fault_of_the_settings_and_never_removes_a_token(tokens: BadTokens) -> None:
    for day in range(3):
        now_ms = START_MS + day * 24 * HOUR_MS
        tokens.fold(0, outcomes(now_ms, refused=range(20), reason="DeviceTokenNotForTopic"))
    assert tokens.mostly_bad(APP) == MostlyBad(START_MS, now_ms, 40, 0, "DeviceTokenNotForTopic")
    tokens.fold(0, outcomes(now_ms, accepted=range(100, 200)))
    assert [tokens.first_refused_ms(APP, 0, number, now_ms) for number in range(20)] == [None] * 20


def test_an_app_is_judged_by_all_partitions_in_which_it_sent_last() -> None:
    """It stays so until it sends again: nobody has seen yet that the fault was mended."""
    tokens = BadTokens()
    tokens.fold(0, outcomes(START_MS - 49 * HOUR_MS, accepted=range(100)))
    for partition in range(4):
        tokens.fold(partition, outcomes(START_MS + partition, refused=[1]))
    assert tokens.mostly_bad(APP) == MostlyBad(START_MS, START_MS + 3, 4, 0, BAD)
    assert tokens.mostly_bad("2") is None
    tokens.fold(7, outcomes(START_MS + 90 * 24 * HOUR_MS, accepted=[1]))
    assert tokens.mostly_bad(APP) is None


def test_answers_of_more_than_two_days_ago_remove_nothing(tokens: BadTokens) -> None:
    refuse(tokens, START_MS, 1)
    assert tokens.first_refused_ms(APP, 0, 1, START_MS + 24 * HOUR_MS) == START_MS
    assert tokens.first_refused_ms(APP, 0, 1, START_MS + 72 * HOUR_MS) is None


def test_remembered_tokens_are_bounded(tokens: BadTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bad_tokens, "MAX_SUSPECTS", 1)
    refuse(tokens, START_MS, 1)
    refuse(tokens, START_MS, 2)
    day_ms = START_MS + 24 * HOUR_MS
    assert [refuse(tokens, day_ms, 2), refuse(tokens, day_ms, 1)] == [None, START_MS]
    week_ms = day_ms + 7 * 24 * HOUR_MS  # the oldest was removed, or gets no pushes any more
    tokens.fold(0, outcomes(week_ms, accepted=range(100, 110)))
    assert refuse(tokens, week_ms, 2) is None
    assert refuse(tokens, week_ms + 24 * HOUR_MS, 2) == week_ms


def test_the_order_of_partitions_makes_no_difference_nor_does_a_restart() -> None:
    rng = random.Random(7)
    histories = {
        partition: [
            outcomes(
                START_MS + step * 7 * HOUR_MS,
                accepted=rng.sample(range(30), rng.randrange(4)),
                refused=rng.sample(range(30), rng.randrange(6)),
            )
            for step in range(30)
        ]
        for partition in range(3)
    }
    live, replayed = BadTokens(), BadTokens()
    for step in range(30):
        for partition, history in histories.items():
            live.fold(partition, history[step])
        restarted = BadTokens()
        for row in live.dump():
            restarted.load(row)
        live = restarted
    for partition, history in histories.items():
        for each in history:
            replayed.fold(partition, each)
    assert list(live.dump()) == list(replayed.dump()) != []
    assert live.mostly_bad(APP) == replayed.mostly_bad(APP) is not None
