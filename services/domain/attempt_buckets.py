"""Token buckets of attempts by key, such as a login name or a network address, in bounded memory."""

from collections import OrderedDict
from ipaddress import IPv4Address

from services.net.http.client_address import read_address

MAX_KEYS = 10_000
"""Upper bound of the token buckets of one object; the longest unused one is forgotten, and starts full again."""


class AttemptBuckets:
    """Token buckets by key: at most `burst` attempts at once, and then `attempts` in each `interval_ms`, evenly."""

    def __init__(self, burst: int, interval_ms: int, attempts: int = 1, *, max_keys: int = MAX_KEYS) -> None:
        """Times are kept in units of ms / `attempts`: in these an attempt takes `interval_ms`, a whole number."""
        self._burst = burst
        self._interval_ms = interval_ms
        self._attempts = attempts
        self._max_keys = max_keys
        self._full_at: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_ms(self, key: str, now_ms: int) -> int:
        """Return how long the key must wait for its next attempt; 0: it may try now."""
        now = now_ms * self._attempts
        wait = self._full_at.get(key, now) - now - (self._burst - 1) * self._interval_ms
        return max(0, -(-wait // self._attempts))

    def take(self, key: str, now_ms: int) -> None:
        """Count an attempt."""
        now = now_ms * self._attempts
        self._put(key, max(self._full_at.get(key, now), now) + self._interval_ms)

    def charge(self, key: str, now_ms: int) -> None:
        """Count an attempt that is refused. A key that must wait already waits for one attempt's time from now."""
        if self.wait_ms(key, now_ms):
            self._put(key, now_ms * self._attempts + self._burst * self._interval_ms)
        else:
            self.take(key, now_ms)

    def _put(self, key: str, full_at: int) -> None:
        self._full_at.pop(key, None)
        self._full_at[key] = full_at
        if len(self._full_at) > self._max_keys:
            self._full_at.popitem(last=False)

    def give_back(self, key: str) -> None:
        """Take back one attempt that was counted."""
        if key in self._full_at:
            self._full_at[key] -= self._interval_ms

    def forget(self, key: str) -> None:
        self._full_at.pop(key, None)


# The networks by which log-ins are told apart.


def site_of(address: str) -> str:
    """Return the network by which attempts for a name are counted, and which a log-in makes a known one.

    That is the /24 of an IPv4 address, in which a person's address changes and which is cheap to rent as a whole, and
    the /48 of an IPv6 address, which is what one customer gets: all its addresses count together.
    """
    found = read_address(address)
    if found is None:
        return address
    return f"{found.packed[:3].hex()}/24" if isinstance(found, IPv4Address) else f"{found.packed[:6].hex()}/48"
