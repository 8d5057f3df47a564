"""Token buckets: how often something may happen for each of very many names."""

from collections import OrderedDict
from ipaddress import IPv6Address

MAX_NAMES = 10_000
"""Names that are remembered; the longest unused one is forgotten first, and then has a full bucket again."""


class Buckets:
    """`per_s` tokens a second for each name, and at most `burst` at once."""

    def __init__(self, per_s: int, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._levels: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, name: str, now_ms: int) -> bool:
        """Take one token; False when there is none."""
        level, then_ms = self._levels.pop(name, (self._burst, now_ms))
        level = min(self._burst, level + max(0, now_ms - then_ms) * self._per_s / 1000)
        taken = level >= 1
        self._levels[name] = (level - taken, now_ms)
        if len(self._levels) > MAX_NAMES:
            self._levels.popitem(last=False)
        return taken


def network(address: str) -> str:
    """Whose address this is: an IPv4 address itself, of an IPv6 one the /64 that one host may fill as it likes."""
    if ":" not in address:
        return address
    return IPv6Address(address.partition("%")[0]).packed[:8].hex()
