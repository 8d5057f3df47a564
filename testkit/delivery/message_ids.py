"""Message ids of a single writer, for tests and benchmarks that write push commands without an edge."""

from services.process.clock import Clock

_EPOCH_S = 1_767_225_600
_ID_BITS = 23


class SoleWriterIds:
    """Increasing ids of the form of message ids. They are unique as long as nobody else makes any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = 0

    def take(self, count: int = 1) -> int:
        """Return the first of `count` consecutive ids."""
        first = max(self._next, (self._clock.now_ms() // 1000 - _EPOCH_S) << _ID_BITS)
        self._next = first + count
        return first
