"""Circuit breaker with exponential back-off and half-open probes."""


class CircuitBreaker:
    """Closed at first. `trip` opens it for a back-off that doubles with each trip; after it the circuit is half-open.

    A half-open circuit is neither `is_closed` nor `is_open`: the caller makes one attempt at a time until it calls
    `close` or `trip`. Times are milliseconds since 1970.
    """

    def __init__(self, first_backoff_ms: int, max_backoff_ms: int) -> None:
        self._first_backoff_ms = first_backoff_ms
        self._max_backoff_ms = max_backoff_ms
        self._trips = 0
        self.open_until_ms = 0

    @property
    def is_closed(self) -> bool:
        return self._trips == 0

    def is_open(self, now_ms: int) -> bool:
        return now_ms < self.open_until_ms

    def trip(self, now_ms: int) -> bool:
        """Open the circuit; False if it is open already, as for attempts that began before it opened."""
        if self.is_open(now_ms):
            return False
        self.open_until_ms = now_ms + min(self._first_backoff_ms << min(self._trips, 30), self._max_backoff_ms)
        self._trips += 1
        return True

    def close(self) -> None:
        self._trips = 0
        self.open_until_ms = 0
