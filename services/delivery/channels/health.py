"""Health of push services, and of an app at one: unreachable services, circuit breaker, rate-limited alarms."""

from typing import NamedTuple

from prometheus_client import Gauge

from services.delivery.channels import MAX_BACKOFF_MS, CircuitChange
from services.delivery.limits import CircuitBreaker
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import CHANNEL_UNREACHABLE

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


class UnreachableServices:
    """The push services of a channel that cannot be reached, counted by the channel's gauge.

    A service is one of them from a failed attempt to connect until a connection opens. It is forgotten FORGOTTEN_MS
    after the last attempt. Retries come sooner, so by then nothing is to be sent there.
    """

    FORGOTTEN_MS = 2 * MAX_BACKOFF_MS

    def __init__(self, channel: str, clock: Clock) -> None:
        self._gauge = CHANNEL_UNREACHABLE.labels(channel)
        self._clock = clock
        self._until_ms: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._until_ms)

    def failed(self, service: str) -> None:
        """Note that no connection could be opened to the service, and none is open."""
        if service not in self._until_ms:
            self._gauge.inc()
        self._until_ms[service] = self._clock.now_ms() + self.FORGOTTEN_MS

    def reached(self, service: str) -> None:
        """Note that a connection to the service has opened, or that nothing is sent to it any more."""
        if self._until_ms.pop(service, None) is not None:
            self._gauge.dec()

    def forget_old(self) -> None:
        now_ms = self._clock.now_ms()
        for service in [service for service, until_ms in self._until_ms.items() if until_ms <= now_ms]:
            self.reached(service)

    def clear(self) -> None:
        for service in list(self._until_ms):
            self.reached(service)
