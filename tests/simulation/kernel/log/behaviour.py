"""How the simulated event log's broker behaves towards its clients."""

from enum import Enum
from random import Random

from tests.simulation.kernel.latency import Latency


class Attempt(Enum):
    """What becomes of one request to append."""

    ANSWERED = "answered"
    NOT_STORED = "not-stored"  # lost on its way, or with the leader that had it alone
    NOT_ANSWERED = "not-answered"  # stored, but the client does not learn it and repeats it: they are there twice


class Behaviour:
    """How the broker behaves, by a seed: `typical_s` is the time of a request, a response or a page on its way.

    `fault_rate` of the requests to append fail in one way or the other; a world raises it for a while.
    """

    def __init__(self, random: Random, typical_s: float = 0.001) -> None:
        self.fault_rate = 0.0
        self._random = random
        self.delay_s = Latency(random, typical_s)

    def attempt(self) -> Attempt:
        if self._random.random() >= self.fault_rate:
            return Attempt.ANSWERED
        return Attempt.NOT_STORED if self._random.random() < 0.5 else Attempt.NOT_ANSWERED

    def read_fails(self) -> bool:
        """Whether a reader loses its connection; it may go on with the next read."""
        return bool(self.fault_rate) and self._random.random() < self.fault_rate

    def compacts(self) -> bool:
        """Whether the records that later ones replace are removed now."""
        return self._random.random() < 0.2

    def page_size(self, wanted: int) -> int:
        """How many records the next page may hold."""
        return wanted if self._random.random() < 0.5 else 1 + int(self._random.random() * min(wanted, 20))
