"""Limits of attempts to log in, by login name and by network address, in bounded memory."""

from collections import OrderedDict

from services.accounts.store import key_of
from services.runtime.sockets.peers import network

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


class LogInLimits:
    """Ten attempts at once and then one in 30 s for a login name; 50 and then one in 5 s from a network address.

    A successful log-in makes the name's bucket full again. All buckets are full after a restart.
    """

    def __init__(self) -> None:
        self._names = AttemptBuckets(10, 30_000)
        self._addresses = AttemptBuckets(50, 5_000)

    def take(self, login: str, address: str, now_ms: int) -> int:
        """Count an attempt and return 0; or count none and return the seconds after which to try again."""
        name, peer = key_of(login), network(address)
        wait_ms = max(self._names.wait_ms(name, now_ms), self._addresses.wait_ms(peer, now_ms))
        if wait_ms:
            return -(-wait_ms // 1000)
        self._names.take(name, now_ms)
        self._addresses.take(peer, now_ms)
        return 0

    def forget(self, login: str) -> None:
        """Forget the attempts for a name that has logged in."""
        self._names.forget(key_of(login))
