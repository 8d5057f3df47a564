"""Token buckets of attempts by key, such as a login name or a network address, in bounded memory."""

from collections import OrderedDict

MAX_KEYS = 10_000
"""Upper bound of the token buckets of a kind; the longest unused one is forgotten, and is full when used again."""


class AttemptBuckets:
    """Token buckets by key: at most `burst` attempts at once, and then one in `interval_ms`."""

    def __init__(self, burst: int, interval_ms: int) -> None:
        self._burst = burst
        self._interval_ms = interval_ms
        self._full_ms: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_ms)

    def wait_ms(self, key: str, now_ms: int) -> int:
        """Return how long the key must wait for its next attempt; 0: it may try now."""
        full_ms = self._full_ms.get(key, now_ms)
        return max(0, full_ms - now_ms - (self._burst - 1) * self._interval_ms)

    def take(self, key: str, now_ms: int) -> None:
        """Count an attempt."""
        full_ms = self._full_ms.pop(key, now_ms)
        self._full_ms[key] = max(full_ms, now_ms) + self._interval_ms
        if len(self._full_ms) > MAX_KEYS:
            self._full_ms.popitem(last=False)

    def forget(self, key: str) -> None:
        self._full_ms.pop(key, None)
