"""Tells whether a key, usually an app, is the only one that has used this process lately."""

from collections.abc import Callable

WINDOW_MS = 10_000
"""Time after its last use for which a key counts as active."""


class Activity:
    """The two keys that were seen last; enough to tell whether a key has the process for itself."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._latest = self._other = ""
        self._latest_ms = self._other_ms = -WINDOW_MS

    def seen(self, key: str) -> None:
        if key != self._latest:
            self._other, self._other_ms = self._latest, self._latest_ms
            self._latest = key
        self._latest_ms = self._now_ms()

    def is_alone(self, key: str) -> bool:
        """Return whether no other key was seen in the last WINDOW_MS."""
        latest_of_others_ms = self._other_ms if key == self._latest else self._latest_ms
        return self._now_ms() - latest_of_others_ms >= WINDOW_MS
