"""The times at which started pushes expire."""

import heapq
from collections.abc import Mapping

_FEW = 1000
"""Entries that are kept in any case, so that the queue of few pushes is not cleaned up again and again."""


class PushExpiries:
    """A queue of pushes by expiry. Entries of pushes that are over are removed once they are the larger part.

    So its size follows the number of pushes that are known, and not of all that started within a time to live.
    """

    def __init__(self, known: Mapping[int, object]) -> None:
        """`known`: the pushes that are not over, by message id; it changes as they start and end."""
        self._known = known
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, expires_ms: int, msgid: int) -> None:
        """Add a known push."""
        heapq.heappush(self._heap, (expires_ms, msgid))
        if len(self._heap) > _FEW + 2 * len(self._known):
            self._heap = [entry for entry in self._heap if entry[1] in self._known]
            heapq.heapify(self._heap)

    def pop_expired(self, now_ms: int) -> list[int]:
        """Remove the pushes that have expired by now; return those that are known, in order of expiry."""
        expired = []
        while self._heap and self._heap[0][0] <= now_ms:
            expired.append(heapq.heappop(self._heap)[1])
        return [msgid for msgid in expired if msgid in self._known]
