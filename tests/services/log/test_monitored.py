"""EndsHistory: how long records have waited, from the log's ends at earlier checks."""

from services.log.monitored import EndsHistory
from services.log.port import Partition

ONE, TWO = Partition("pushes", 0), Partition("pushes", 1)


def test_the_oldest_record_that_is_not_applied_counts() -> None:
    history = EndsHistory()
    for second in range(10):
        history.note(second * 1000, {ONE: second, TWO: 5})
    assert history.waited_ms(9_500, {ONE: 9, TWO: 5}) == 0
    assert history.waited_ms(9_500, {ONE: 8, TWO: 5}) == 500
    assert history.waited_ms(9_500, {ONE: 2, TWO: 5}) == 6_500
    assert history.waited_ms(9_500, {ONE: 9, TWO: 4}) == 9_500
    assert history.waited_ms(9_500, {}) == 0


def test_it_reaches_far_back_with_few_checks() -> None:
    history = EndsHistory()
    for second in range(20_000):
        history.note(second * 1000, {ONE: second})
    assert len(history._checks) == 64
    for applied in (0, 5_000, 15_000, 19_000, 19_990):
        true_ms = (19_999 - (applied + 1)) * 1000
        assert 0.5 * true_ms < history.waited_ms(19_999_000, {ONE: applied}) <= true_ms
    assert history.waited_ms(19_999_000, {ONE: 19_999}) == 0
