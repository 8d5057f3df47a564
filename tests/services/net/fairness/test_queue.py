"""FairQueue: in which order items of several keys are taken."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from services.net.fairness import FairQueue


def taken(queue: FairQueue[str, int], count: int = 10_000) -> list[str]:
    keys: list[str] = []
    while len(keys) < count and (found := queue.take()):
        keys.append(found[0])
    return keys


def test_keys_alternate_and_each_keeps_its_order() -> None:
    queue: FairQueue[str, int] = FairQueue()
    for number in range(3):
        queue.put("a", number)
    for number in range(3):
        queue.put("b", number)
    assert [queue.take() for _ in range(7)] == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2), None]


def test_a_late_key_waits_for_one_turn_of_a_backlog() -> None:
    queue: FairQueue[str, int] = FairQueue()
    for number in range(1000):
        queue.put("noisy", number)
    taken(queue, 500)
    queue.put("quiet", 0)
    assert "quiet" in taken(queue, 2)


def test_turns_follow_from_sizes() -> None:
    queue: FairQueue[str, int] = FairQueue()
    for number in range(10):
        queue.put("large", number, size=10)
    for number in range(100):
        queue.put("small", number, size=1)
    first = taken(queue, 44)
    assert first.count("large") == 4


def test_a_charge_delays_the_next_turn_only() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.charge("a", 3)
    for number in range(8):
        queue.put("a", number)
        queue.put("b", number)
    assert taken(queue, 8) == ["b", "b", "b", "a", "b", "a", "b", "a"]


def test_a_key_does_not_save_up_turns() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.put("idle", 0)
    for number in range(100):
        queue.put("busy", number)
    taken(queue, 80)
    for number in range(10):
        queue.put("idle", number)
    assert max(len(list(run)) for _, run in groupby(taken(queue, 20))) <= 2


def test_keys_that_may_not_run_keep_their_place() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.put("a", 0)
    queue.put("b", 0)
    assert queue.take(lambda key: key != "a") == ("b", 0)
    assert queue.take(lambda key: key != "a") is None
    assert queue.take() == ("a", 0)


def test_discarded_items_are_not_taken() -> None:
    queue: FairQueue[str, object] = FairQueue()
    first, second = object(), object()
    queue.put("a", first)
    queue.put("a", second, size=2)
    queue.discard("a", first)
    assert (queue.waiting("a"), queue.waiting_size("a")) == (1, 2)
    assert queue.take() == ("a", second)
    queue.put("a", first)
    queue.discard("a", first)
    queue.discard("a", first)
    assert (queue.take(), len(queue)) == (None, 0)


def test_keys_without_work_cost_no_memory() -> None:
    queue: FairQueue[int, int] = FairQueue()
    for key in range(20_000):
        queue.put(key, 0)
        queue.take()
    assert len(queue._ends) <= 1001


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=60))
def test_every_item_is_taken_once_and_in_order_of_its_key(puts: list[tuple[str, int]]) -> None:
    queue: FairQueue[str, int] = FairQueue()
    for place, (key, size) in enumerate(puts):
        queue.put(key, place, size)
    found = []
    while (each := queue.take()) is not None:
        found.append(each)
    assert sorted(place for _, place in found) == list(range(len(puts)))
    for key in "abc":
        places = [place for own, place in found if own == key]
        assert places == sorted(places)
