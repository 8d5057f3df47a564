"""Random durations of what a machine or a network does."""

from random import Random


class Latency:
    """Durations around a typical one: one in ten takes up to ten times as long, one in a hundred up to a hundred."""

    def __init__(self, random: Random, typical_s: float) -> None:
        self._random = random
        self._typical_s = typical_s

    def __call__(self) -> float:
        random = self._random.random
        kind = random()
        factor = 1 if kind < 0.9 else 10 if kind < 0.99 else 100
        return self._typical_s * factor * (0.5 + random())
