"""Devices that Apple wants to get no pushes for a while (429 TooManyRequests)."""


class DeviceDelays:
    """The ends of the delays by device token; beyond `capacity` tokens no more are added."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._until_ms: dict[str, int] = {}

    def delay(self, token: str, until_ms: int, now_ms: int) -> None:
        if len(self._until_ms) >= self._capacity:
            self._until_ms = {known: end_ms for known, end_ms in self._until_ms.items() if end_ms > now_ms}
        if len(self._until_ms) < self._capacity:
            self._until_ms[token] = until_ms

    def until_ms(self, token: str, now_ms: int) -> int | None:
        """The end of the token's delay; None if it has none, or it is over."""
        end_ms = self._until_ms.get(token)
        if end_ms is not None and end_ms <= now_ms:
            del self._until_ms[token]
            return None
        return end_ms
