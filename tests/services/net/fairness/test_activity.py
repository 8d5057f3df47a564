"""Activity: whether a key has the process for itself."""

from services.net.fairness import WINDOW_MS, KeyActivity
from services.process.clock import ManualClock


def test_a_key_is_alone_until_another_is_seen() -> None:
    clock = ManualClock(0)
    activity = KeyActivity(clock.now_ms)
    assert activity.is_alone("a")
    activity.seen("a")
    assert activity.is_alone("a")
    assert not activity.is_alone("b")
    activity.seen("b")
    assert not activity.is_alone("a")
    assert not activity.is_alone("b")


def test_a_key_that_is_silent_for_the_window_does_not_count() -> None:
    clock = ManualClock(0)
    activity = KeyActivity(clock.now_ms)
    activity.seen("quiet")
    for _ in range(9):
        clock.move(WINDOW_MS / 1000 / 10)
        activity.seen("noisy")
        assert not activity.is_alone("noisy")
    clock.move(WINDOW_MS / 1000 / 10)
    assert activity.is_alone("noisy")
    assert not activity.is_alone("quiet")


def test_a_third_key_takes_the_place_of_an_older_one() -> None:
    clock = ManualClock(0)
    activity = KeyActivity(clock.now_ms)
    for key in "abcab":
        activity.seen(key)
    assert not any(activity.is_alone(key) for key in "abcd")
