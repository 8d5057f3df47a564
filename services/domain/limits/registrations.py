"""Limits the registrations of new devices from one network, over WebSocket and over HTTP alike."""

from collections import OrderedDict

from services.runtime.sockets.peers import network

MAX_NETWORKS = 10_000
"""Upper bound of the token buckets; the longest unused one is forgotten, and is full when it is used again."""

_BURST_S = 10


class RegistrationLimiter:
    """Token buckets: `per_s` registrations a second from each network, and at most ten times as many at once."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._burst = _BURST_S * per_s
        self._levels: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, address: str, now_ms: int) -> bool:
        """Take one token for a device at this address; False when its network's bucket is empty."""
        peer = network(address)
        level, then_ms = self._levels.pop(peer, (self._burst, now_ms))
        level = min(self._burst, level + max(0, now_ms - then_ms) * self._per_s / 1000)
        taken = level >= 1
        self._levels[peer] = (level - taken, now_ms)
        if len(self._levels) > MAX_NETWORKS:
            self._levels.popitem(last=False)
        return taken
