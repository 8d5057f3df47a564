"""The dedupe window: bounded, stored over restarts, and larger for timed pushes, which may be repeated late."""

import msgspec
import pytest
from pyroaring import BitMap64

from services.delivery.state import dedupe_window
from services.delivery.state.dedupe_window import DedupeWindow


def test_a_timed_push_is_known_however_many_other_pushes_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe_window, "_GENERATION", 10)
    window = DedupeWindow()
    window.add(1, is_timed=True)
    window.add(2, is_timed=False)
    for msgid in range(100, 200):
        window.add(msgid, is_timed=False)
    assert [1 in window, 2 in window, 190 in window] == [True, False, True]
    restored = DedupeWindow()
    restored.load(window.dump())
    assert [1 in restored, 2 in restored, 190 in restored] == [True, False, True]
    for msgid in range(200, 300):
        restored.add(msgid, is_timed=True)
    assert [1 in restored, 199 in restored, 299 in restored] == [False, True, True]


def test_a_window_of_an_earlier_release_is_read() -> None:
    window = DedupeWindow()
    window.load(msgspec.msgpack.encode((BitMap64([7]).serialize(), BitMap64([3]).serialize())))
    assert [3 in window, 7 in window, 8 in window] == [True, True, False]
