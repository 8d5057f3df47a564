"""Health of an app at Apple: circuit breaker, gauge of stopped apps, and rate-limited alarms."""

from typing import NamedTuple

from services.delivery.ios.next_step import MAX_BACKOFF_MS, CircuitChange
from services.delivery.limits.circuit_breaker import CircuitBreaker
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APNS_STOPPED

_FIRST_BACKOFF_MS = 5_000
_ALARM_INTERVAL_MS = 60_000


class Stopped(NamedTuple):
    """Since when Apple has not accepted an app's key, and its latest reason."""

    since_ms: int
    reason: str


class AppHealth:
    """Opens the app's circuit while Apple does not accept its key."""

    def __init__(self, appkey: str, clock: Clock) -> None:
        self._appkey = appkey
        self._clock = clock
        self._circuit = CircuitBreaker(_FIRST_BACKOFF_MS, MAX_BACKOFF_MS)
        self._alarmed_ms: dict[str, int] = {}
        self._stopped: Stopped | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may be sent now."""
        return self._circuit.is_open(self._clock.now_ms())

    @property
    def is_probing(self) -> bool:
        """Whether one push at a time may be sent, to find out whether Apple accepts the key again."""
        return not self._circuit.is_closed

    @property
    def stopped(self) -> Stopped | None:
        """Since when and why pushes wait, until Apple has accepted the key again; None where they do not."""
        return self._stopped

    def apply(self, change: CircuitChange, reason: str = "") -> int | None:
        """Apply a change; returns the time in ms at which to probe if the circuit opened, else None."""
        if change is CircuitChange.OPEN:
            now_ms = self._clock.now_ms()
            if self._circuit.trip(now_ms):
                if self._stopped is None:
                    APNS_STOPPED.inc()
                self._stopped = Stopped(self._stopped.since_ms if self._stopped else now_ms, reason)
                return self._circuit.open_until_ms
        elif change is CircuitChange.CLOSE:
            self.close()
        return None

    def close(self) -> None:
        """Close the circuit: Apple accepts the key, or nothing is sent here any more."""
        self._circuit.close()
        if self._stopped is not None:
            self._stopped = None
            APNS_STOPPED.dec()

    def alarm(self, text: str, reason: str = "") -> None:
        """Log an error that an operator has to act on, at most once a minute for each text and reason."""
        now_ms = self._clock.now_ms()
        if now_ms - self._alarmed_ms.get(text + reason, -_ALARM_INTERVAL_MS) >= _ALARM_INTERVAL_MS:
            self._alarmed_ms[text + reason] = now_ms
            logger.error(text, appkey=self._appkey, reason=reason)
