"""App opens in rolling windows of N times 24 hours: windows move with the clock, an hour at a time."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from services.targeting.activity import WINDOWS, AppOpens, hour_of
from tests.services.targeting.model import HOUR_MS, NOON_MS, same_each_time

_DAY = 20_600
_START = 24 * _DAY


def _stored(activity: AppOpens) -> dict[int, list[BitMap]]:
    return {day: counts.slices for day, counts in activity.days.items()}


def test_hours_are_those_of_the_utc_clock() -> None:
    noon = hour_of(NOON_MS)
    assert noon % 24 == 12
    assert [hour_of(NOON_MS + ms) - noon for ms in (-1, 0, HOUR_MS - 1, HOUR_MS)] == [-1, 0, 0, 1]


@pytest.mark.parametrize("hour", [_START, _START + 11, _START + 23])
@pytest.mark.parametrize("window", WINDOWS)
def test_an_open_counts_in_its_hour_and_in_the_hours_that_follow_in_the_window(window: int, hour: int) -> None:
    """It counts an hour early too: a gateway's clock may be ahead."""
    activity = AppOpens()
    activity.add(5, hour)
    hours = range(-3, 24 * window + 3)
    assert [bool(activity.at_least(1, window, hour + later)) for later in hours] == [
        -1 <= later <= 24 * window for later in hours
    ]


@pytest.mark.parametrize("window", WINDOWS)
def test_an_open_that_is_reported_late_counts_in_the_windows_that_still_cover_its_hour(window: int) -> None:
    activity = AppOpens()
    activity.add(1, _START)
    assert len(activity.at_least(1, window, _START)) == 1
    activity.add(2, _START - 24 * window - 1)
    activity.add(3, _START - 24 * window)
    assert list(activity.at_least(1, window, _START)) == [1, 3]


def test_opens_are_added_up_over_hours_and_compared_exactly() -> None:
    activity = AppOpens()
    for hour in range(_START, _START + 2161):
        for _ in range(3):
            activity.add(1, hour)
    now = _START + 2160
    for window in WINDOWS:
        opens = 3 * (24 * window + 1)
        found = [len(activity.at_least(least, window, now)) for least in (opens, opens + 1)]
        assert found == [1, 0]


def test_a_device_beyond_the_others_numbers_is_counted() -> None:
    activity = AppOpens()
    for number in (0, 70_000, (1 << 22) + 5):
        for day in range(3):
            activity.add(number, _START - 24 * day)
            activity.add(number, _START - 24 * day + 23)
    assert list(activity.at_least(6, 30, _START + 23)) == [0, 70_000, (1 << 22) + 5]
    assert not activity.at_least(7, 30, _START + 23)


def test_only_the_99_latest_days_are_stored() -> None:
    activity = AppOpens()
    for day in range(300):
        activity.add(day, _START + 24 * day + day % 24)
    assert sorted(activity.days) == list(range(_DAY + 201, _DAY + 300))
    activity.add(7, _START + 24 * 201 - 1)
    assert sorted(activity.days) == list(range(_DAY + 201, _DAY + 300))


def test_days_that_a_wrong_clock_wrote_displace_no_day_of_a_window() -> None:
    activity = AppOpens()
    for hour in range(_START, _START + 2160):
        activity.add(0, hour)
    for day in range(7):
        activity.add(1, _START + 24 * (200 + day))
    for hour in range(_START + 2160, _START + 2400):
        activity.add(0, hour)
        assert list(activity.at_least(2161, 90, hour)) == [0]
        assert not activity.at_least(2162, 90, hour)


def test_a_day_that_is_displaced_leaves_the_sums() -> None:
    activity = AppOpens()
    for day in range(90):
        activity.add(0, _START + 24 * day)
    now = _START + 24 * 89
    assert list(activity.at_least(90, 90, now)) == [0]
    for day in range(10):
        activity.add(1, _START + 24 * (200 + day))
    assert not activity.at_least(90, 90, now)
    assert list(activity.at_least(89, 90, now)) == [0]
    assert list(activity.at_least(88, 90, now + 24)) == [0]


def test_opens_that_are_reported_while_a_sum_is_first_counted_count_once() -> None:
    activity = AppOpens()
    for hour in range(_START, _START + 2160, 5):
        activity.add(0, hour)
    now, steps = _START + 2159, 0
    while activity.move((90,), now):
        activity.add(1, now)
        activity.add(2, _START)
        steps += 1
    assert steps == 92
    found = [list(activity.at_least(least, 90, now)) for least in (steps, steps + 1, 432, 433)]
    assert found == [[0, 1, 2], [0], [0], []]


@same_each_time
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9600)), max_size=300), st.randoms(use_true_random=False))
def test_the_stored_days_do_not_depend_on_the_order_of_events(opened: list[tuple[int, int]], random: Random) -> None:
    activity, other = AppOpens(), AppOpens()
    for number, hour in opened:
        activity.add(number, _START + hour)
    for number, hour in random.sample(opened, len(opened)):
        other.add(number, _START + hour)
    assert _stored(activity) == _stored(other)


_AGES = [24 * days + hours for days in (0, 1, 7, 30, 90) for hours in (-1, 0, 1) if days or hours >= 0]
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 3), st.sampled_from([-30, -2, -1, 5, 1000, 2300, *_AGES])),
        st.tuples(st.just("ask"), st.sampled_from(WINDOWS), st.integers(1, 3)),
        st.tuples(st.just("begin"), st.sampled_from(WINDOWS), st.integers(1, 3)),
        st.tuples(st.just("move"), st.sampled_from([1, 1, 2, 23, 24, 47, 49, 700, 2400, -1, -30]), st.just(0)),
    ),
    max_size=60,
)


@same_each_time
@given(_steps, st.integers(0, 23))
def test_moved_sums_equal_a_fresh_count(steps: list[tuple[str, int, int]], begin: int) -> None:
    """Opens may be late or ahead of the clock, the clock may be set back, and sums may be half made meanwhile."""
    activity, opened, now = AppOpens(), list[tuple[int, int]](), _START + begin
    for step, first, second in steps:
        match step:
            case "open":
                activity.add(first, now - second)
                opened.append((first, now - second))
            case "begin":
                for _ in range(second):
                    activity.move((first,), now)
            case "move":
                now += first
            case _:
                counted = Counter(number for number, hour in opened if now - 24 * first <= hour <= now + 1)
                assert set(activity.at_least(second, first, now)) == {n for n, c in counted.items() if c >= second}


@same_each_time
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2900)), max_size=40), st.booleans())
def test_the_stored_days_do_not_depend_on_queries(opened: list[tuple[int, int]], asked: bool) -> None:
    activity = AppOpens()
    plain = AppOpens()
    for number, hour in opened:
        activity.add(number, _START + hour)
        plain.add(number, _START + hour)
        activity.at_least(1, 30, _START + 2900 + asked)
    assert _stored(activity) == _stored(plain)
