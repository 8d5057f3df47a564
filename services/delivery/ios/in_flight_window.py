"""Bounds the messages of an app that wait for a connection or for Apple's response."""

import asyncio
from collections.abc import Callable


class InFlightWindow:
    """Counts messages in flight; `on_half_empty` is called on each response while at most half the window is used."""

    def __init__(self, size: int, on_half_empty: Callable[[], None]) -> None:
        self._size = size
        self._on_half_empty = on_half_empty
        self._in_flight = 0
        self.empty = asyncio.Event()
        """Set while nothing is in flight."""
        self.empty.set()

    def free(self, is_probing: bool) -> int:
        """The number of messages that may be sent now; while the circuit is half-open, one at a time."""
        return (1 if is_probing else self._size) - self._in_flight

    def enter(self) -> None:
        self._in_flight += 1
        self.empty.clear()

    def leave(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self.empty.set()
        if self._in_flight <= self._size // 2:
            self._on_half_empty()
