"""App opens in rolling windows of days: windows move with the clock, days end at midnight of the zone."""

from collections import Counter
from datetime import datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.targeting.activity import WINDOWS, Activity, day_of
from tests.roles.targeting.model import same_each_time

_BERLIN = ZoneInfo("Europe/Berlin")
_START = 739_000


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("moment", "date"),
    [
        ("2026-03-29T00:59:59+01:00", "2026-03-29"),
        ("2026-03-29T23:59:59+02:00", "2026-03-29"),
        ("2026-03-30T00:00:00+02:00", "2026-03-30"),
        ("2026-10-25T00:00:00+02:00", "2026-10-25"),
        ("2026-10-25T23:59:59+01:00", "2026-10-25"),
        ("2026-10-26T00:00:00+01:00", "2026-10-26"),
        ("2026-06-01T22:30:00+00:00", "2026-06-02"),
    ],
)
def test_a_day_ends_at_midnight_of_the_zone_also_when_it_has_23_or_25_hours(moment: str, date: str) -> None:
    assert day_of(_ms(moment), _BERLIN) == datetime.fromisoformat(date).toordinal()


@pytest.mark.parametrize("window", WINDOWS)
def test_an_open_counts_on_its_day_and_on_the_days_that_follow_in_the_window(window: int) -> None:
    activity = Activity()
    activity.add(5, _START)
    seen = [bool(activity.at_least(1, window, _START + later)) for later in range(-2, 95)]
    assert seen == [0 <= later < window for later in range(-2, 95)]


@pytest.mark.parametrize("window", WINDOWS)
def test_an_open_that_is_reported_late_counts_in_the_windows_that_still_cover_its_day(window: int) -> None:
    activity = Activity()
    activity.add(1, _START)
    assert len(activity.at_least(1, window, _START)) == 1
    activity.add(2, _START - window)
    activity.add(3, _START - window + 1)
    assert list(activity.at_least(1, window, _START)) == [1, 3]


def test_opens_are_added_up_over_days_and_compared_exactly() -> None:
    activity = Activity()
    for day in range(90):
        for _ in range(3):
            activity.add(1, _START + day)
    today = _START + 89
    assert [len(activity.at_least(270, 90, today)), len(activity.at_least(271, 90, today))] == [1, 0]
    assert [len(activity.at_least(21, 7, today)), len(activity.at_least(22, 7, today))] == [1, 0]


def test_only_the_98_latest_days_are_stored() -> None:
    activity = Activity()
    for day in range(300):
        activity.add(day, _START + day)
    assert sorted(activity.days) == list(range(_START + 202, _START + 300))
    activity.add(7, _START + 201)
    assert sorted(activity.days) == list(range(_START + 202, _START + 300))


def test_days_that_a_wrong_clock_wrote_displace_no_day_of_a_window() -> None:
    activity = Activity()
    for day in range(90):
        activity.add(0, _START + day)
    for day in range(7):
        activity.add(1, _START + 200 + day)
    for day in range(90, 100):
        activity.add(0, _START + day)
        activity.add(2, _START + day)
        assert list(activity.at_least(90, 90, _START + day)) == [0]
        assert list(activity.at_least(day - 89, 90, _START + day)) == [0, 2]


def test_a_day_that_is_displaced_leaves_the_sums() -> None:
    activity = Activity()
    for day in range(90):
        activity.add(0, _START + day)
    assert list(activity.at_least(90, 90, _START + 89)) == [0]
    for day in range(9):
        activity.add(1, _START + 200 + day)
    assert not activity.at_least(90, 90, _START + 89)
    assert list(activity.at_least(89, 90, _START + 89)) == [0]
    assert list(activity.at_least(88, 90, _START + 90)) == [0]


@same_each_time
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=300), st.randoms(use_true_random=False))
def test_the_stored_days_do_not_depend_on_the_order_of_events(opened: list[tuple[int, int]], random: Random) -> None:
    activity, other = Activity(), Activity()
    for number, day in opened:
        activity.add(number, _START + day)
    for number, day in random.sample(opened, len(opened)):
        other.add(number, _START + day)
    assert {day: counts.slices for day, counts in activity.days.items()} == {
        day: counts.slices for day, counts in other.days.items()
    }


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 3), st.sampled_from([0, 1, 6, 7, 29, 30, 89, 90, 91, 100])),
        st.tuples(st.just("ask"), st.sampled_from(WINDOWS), st.integers(1, 3)),
        st.tuples(st.just("move"), st.sampled_from([1, 6, 7, 40, 100]), st.just(0)),
    ),
    max_size=60,
)


@same_each_time
@given(_steps)
def test_moved_sums_equal_a_fresh_count(steps: list[tuple[str, int, int]]) -> None:
    """An open may be reported up to 100 days late; it counts in every window that still covers its day."""
    activity, opened, today = Activity(), list[tuple[int, int]](), _START
    for step, first, second in steps:
        match step:
            case "open":
                activity.add(first, today - second)
                opened.append((first, today - second))
            case "move":
                today += first
            case _:
                counted = Counter(number for number, day in opened if today - first < day <= today)
                assert set(activity.at_least(second, first, today)) == {n for n, c in counted.items() if c >= second}


@same_each_time
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), max_size=40), st.booleans())
def test_the_stored_days_do_not_depend_on_queries(opened: list[tuple[int, int]], asked: bool) -> None:
    activity = Activity()
    plain = Activity()
    for number, day in opened:
        activity.add(number, _START + day)
        plain.add(number, _START + day)
        activity.at_least(1, 30, _START + 120 + asked)
    assert {day: counts.slices for day, counts in activity.days.items()} == {
        day: counts.slices for day, counts in plain.days.items()
    }
