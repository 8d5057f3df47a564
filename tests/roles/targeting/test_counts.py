"""Bit-sliced counts against a Counter."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.targeting.counts import Counts
from tests.roles.targeting.model import same_each_time

_numbers = st.lists(st.integers(0, 8), max_size=60)


def _counts(numbers: list[int]) -> Counts:
    counts = Counts()
    for number in numbers:
        counts.add(number)
    return counts


def _seen(counts: Counts) -> Counter[int]:
    return +Counter({n: sum((n in part) << place for place, part in enumerate(counts.slices)) for n in range(9)})


@same_each_time
@given(_numbers, st.integers(1, 70))
def test_counts_each_number_and_compares_it(numbers: list[int], least: int) -> None:
    counts = _counts(numbers)
    assert _seen(counts) == Counter(numbers)
    assert set(counts.at_least(least)) == {n for n, count in Counter(numbers).items() if count >= least}


@same_each_time
@given(_numbers, _numbers)
def test_adds_and_takes_away_whole_counts(some: list[int], more: list[int]) -> None:
    counts = _counts(some)
    counts.plus(_counts(more))
    assert _seen(counts) == Counter(some) + Counter(more)
    assert counts.slices == _counts(some + more).slices
    counts.minus(_counts(some))
    assert counts.slices == _counts(more).slices


@same_each_time
@given(_numbers)
def test_the_parts_of_a_sum_do_not_change(numbers: list[int]) -> None:
    part = _counts(numbers)
    total = Counts()
    total.plus(part)
    total.plus(part)
    total.add(3)
    assert part.slices == _counts(numbers).slices
