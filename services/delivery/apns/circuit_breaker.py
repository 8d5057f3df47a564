"""Keeps away from what does not work, ever longer, and tries it again with care."""


class Circuit:
    """Closed at first. Each `trip` rests twice as long as the one before; after a rest one attempt at a time may go,
    until one of them goes well. Times are milliseconds since 1970."""

    def __init__(self, first_rest_ms: int, longest_rest_ms: int) -> None:
        self._first_rest_ms = first_rest_ms
        self._longest_rest_ms = longest_rest_ms
        self._trips = 0
        self.until_ms = 0

    @property
    def is_closed(self) -> bool:
        """Whether all is well."""
        return self._trips == 0

    def rests(self, now_ms: int) -> bool:
        return now_ms < self.until_ms

    def trip(self, now_ms: int) -> bool:
        """Rest from now on; False where it rests already, for attempts that began before it did."""
        if self.rests(now_ms):
            return False
        self.until_ms = now_ms + min(self._first_rest_ms << min(self._trips, 30), self._longest_rest_ms)
        self._trips += 1
        return True

    def close(self) -> None:
        """It went well."""
        self._trips = 0
        self.until_ms = 0
