"""Health of an app at a push service: circuit breaker, gauge of stopped apps, and rate-limited alarms."""

from typing import NamedTuple

from prometheus_client import Gauge

from services.delivery.channels import MAX_BACKOFF_MS, CircuitChange
from services.delivery.limits import CircuitBreaker
from services.process.clock import Clock
from services.process.logs import logger

_FIRST_BACKOFF_MS = 5_000
_ALARM_INTERVAL_MS = 60_000

MAX_ALARMS = 10_000
"""Upper bound of remembered alarms. A service chooses the texts of its reasons; the oldest alarm is forgotten first."""


class Alarms:
    """Logs errors that an operator has to act on, at most once a minute for each app, text and reason."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_ms: dict[tuple[str, str, str], int] = {}

    def log(self, appkey: str, text: str, reason: str = "") -> None:
        """Log the text. `reason`: the service's, or "" if there is none."""
        now_ms, alarm = self._clock.now_ms(), (appkey, text, reason)
        if now_ms - self._logged_ms.get(alarm, -_ALARM_INTERVAL_MS) < _ALARM_INTERVAL_MS:
            return
        self._logged_ms.pop(alarm, None)  # so that they stand in the order of their times
        self._logged_ms[alarm] = now_ms
        if len(self._logged_ms) > MAX_ALARMS:
            del self._logged_ms[next(iter(self._logged_ms))]
        logger.error(text, appkey=appkey, reason=reason)


class Stopped(NamedTuple):
    """Since when a service has not accepted an app's credentials, and its latest reason."""

    since_ms: int
    reason: str


class AppHealth:
    """Opens the app's circuit while the service does not accept its credentials.

    `apps_stopped`: counts the apps whose circuit is not closed.
    """

    def __init__(self, clock: Clock, apps_stopped: Gauge) -> None:
        self._clock = clock
        self._apps_stopped = apps_stopped
        self._circuit = CircuitBreaker(_FIRST_BACKOFF_MS, MAX_BACKOFF_MS)
        self._stopped: Stopped | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may be sent now."""
        return self._circuit.is_open(self._clock.now_ms())

    @property
    def is_probing(self) -> bool:
        """Whether one message at a time may be sent, to find out whether the credentials are accepted again."""
        return not self._circuit.is_closed

    @property
    def stopped(self) -> Stopped | None:
        """Since when and why pushes wait, until the credentials have been accepted again; None where they do not."""
        return self._stopped

    def apply(self, change: CircuitChange, reason: str = "") -> int | None:
        """Apply a change; returns the time in ms at which to probe if the circuit opened, else None."""
        if change is CircuitChange.OPEN:
            now_ms = self._clock.now_ms()
            if self._circuit.trip(now_ms):
                if self._stopped is None:
                    self._apps_stopped.inc()
                self._stopped = Stopped(self._stopped.since_ms if self._stopped else now_ms, reason)
                return self._circuit.open_until_ms
        elif change is CircuitChange.CLOSE:
            self.close()
        return None

    def close(self) -> None:
        """Close the circuit: the credentials are accepted, or nothing is sent here any more."""
        self._circuit.close()
        if self._stopped is not None:
            self._stopped = None
            self._apps_stopped.dec()
