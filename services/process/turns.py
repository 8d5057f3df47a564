"""Turns of the event loop, which work for many receivers leaves to work for one.

A push to a connected device passes some 20 turns of the event loop between its request and its frame. If each of them
had a slice of a broadcast too, the frame would be 20 slices late.
"""

import asyncio
from collections.abc import Callable


class SpacedSlices:
    """Calls `work` in turns of the event loop; it returns how many turns other work has before it is called again."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._is_requested = False
        self._is_scheduled = False

    def request(self) -> None:
        """Have `work` called once more: in the next turn, or once the turns after its last call are over."""
        self._is_requested = True
        if not self._is_scheduled:
            self._pass(0)

    def _pass(self, turns: int) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._turn, turns)

    def _turn(self, left: int) -> None:
        if left:
            self._pass(left - 1)
        elif self._is_requested:
            self._is_requested = False
            turns = 0
            try:
                turns = self._work()
            finally:
                self._is_scheduled = False
                if turns or self._is_requested:
                    self._pass(turns)
        else:
            self._is_scheduled = False
