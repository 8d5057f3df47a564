"""Bit-sliced counts against a Counter."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.targeting.activity import BitSlicedCounts
from tests.services.targeting.model import same_each_time

_numbers = st.lists(st.integers(0, 8), max_size=60)


def _counts(numbers: list[int]) -> BitSlicedCounts:
    counts = BitSlicedCounts()
    for number in numbers:
        counts.increment(number)
    return counts


def _as_counter(counts: BitSlicedCounts) -> Counter[int]:
    return +Counter({n: sum((n in part) << bit for bit, part in enumerate(counts.slices)) for n in range(9)})


@same_each_time
@given(_numbers, st.integers(1, 70))
def test_each_number_is_counted_and_compared(numbers: list[int], least: int) -> None:
    counts = _counts(numbers)
    assert _as_counter(counts) == Counter(numbers)
    assert set(counts.at_least(least)) == {n for n, count in Counter(numbers).items() if count >= least}


@same_each_time
@given(_numbers, _numbers)
def test_whole_counts_are_added_and_subtracted(some: list[int], more: list[int]) -> None:
    counts = _counts(some)
    counts.add(_counts(more))
    assert _as_counter(counts) == Counter(some) + Counter(more)
    assert counts.slices == _counts(some + more).slices
    counts.subtract(_counts(some))
    assert counts.slices == _counts(more).slices


@same_each_time
@given(_numbers)
def test_adding_counts_does_not_change_the_counts_added(numbers: list[int]) -> None:
    part = _counts(numbers)
    total = BitSlicedCounts()
    total.add(part)
    total.add(part)
    total.increment(3)
    assert part.slices == _counts(numbers).slices


@same_each_time
@given(st.lists(st.integers(0, 200), max_size=60))
def test_an_array_of_counts_has_the_slices_of_counting(times: list[int]) -> None:
    counted = _counts([number for number, count in enumerate(times) for _ in range(count)])
    assert BitSlicedCounts.of(np.array(times, np.uint32)).slices == counted.slices
