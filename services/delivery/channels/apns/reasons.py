"""Handling of Apple's responses: the next steps for the message, the app's health, the connection and the token."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple, assert_never

from services.delivery.channels.apns.request import ApnsResult
from services.delivery.limits import CircuitBreaker
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import APNS_STOPPED

# The action for each (status, reason) of Apple's responses, by Apple's documentation.


class ResponseAction(Enum):
    """Action of an app's sender and of the connection after a response."""

    ACCEPT = auto()
    """Record the push as sent."""

    FAIL = auto()
    """Record the push as failed: it is invalid, and a retry would fail too."""

    REMOVE = auto()
    """Record the push as failed and remove the token from the registry, unless it registered again since."""

    TRY_OTHER_ENVIRONMENT = auto()
    """Resend once to Apple's sandbox if the app uses both environments. Else the push has failed: the token is bad, or
    the app's settings are wrong.
    """

    STOP_APP = auto()
    """Apple does not accept the app's key: open the app's circuit and retry."""

    RENEW_TOKEN = auto()
    """Resend at once with a new provider token; the second time, retry after a back-off."""

    HOLD_TOKEN = auto()
    """Apple has seen too many provider tokens: return to one that it knows, replace the connection after a back-off."""

    DELAY_DEVICE = auto()
    """Too many pushes to one device: delay all pushes to that device."""

    BACK_OFF = auto()
    """Apple has a fault: the connection backs off; retry."""

    RECONNECT = auto()
    """Apple closes the connection: drain it, and retry on another one."""

    REPEAT = auto()
    """It is unknown whether Apple accepted the push: retry with the same collapse id."""


class Handling(NamedTuple):
    """The action after a response. `alarm`: an operator has to act."""

    action: ResponseAction
    alarm: bool = False


_INVALID = Handling(ResponseAction.FAIL, alarm=True)
_BAD_KEY = Handling(ResponseAction.STOP_APP, alarm=True)

HANDLINGS: dict[tuple[int, str], Handling] = {
    (400, "BadCollapseId"): _INVALID,
    (400, "BadDeviceToken"): Handling(ResponseAction.TRY_OTHER_ENVIRONMENT),
    (400, "BadExpirationDate"): _INVALID,
    (400, "BadMessageId"): _INVALID,
    (400, "BadPriority"): _INVALID,
    (400, "BadTopic"): _INVALID,
    (400, "DeviceTokenNotForTopic"): _INVALID,
    (400, "DuplicateHeaders"): _INVALID,
    (400, "IdleTimeout"): Handling(ResponseAction.RECONNECT),
    (400, "InvalidPushType"): _INVALID,
    (400, "MissingDeviceToken"): _INVALID,
    (400, "MissingTopic"): _INVALID,
    (400, "PayloadEmpty"): _INVALID,
    (400, "TopicDisallowed"): _INVALID,
    (403, "BadCertificate"): _BAD_KEY,
    (403, "BadCertificateEnvironment"): _BAD_KEY,
    (403, "BadEnvironmentKeyIdInToken"): _BAD_KEY,
    (403, "BadEnvironmentKeyInToken"): _BAD_KEY,
    (403, "ExpiredProviderToken"): Handling(ResponseAction.RENEW_TOKEN),
    (403, "Forbidden"): _BAD_KEY,
    (403, "InvalidProviderToken"): _BAD_KEY,
    (403, "MissingProviderToken"): _BAD_KEY,
    (403, "UnrelatedKeyIdInToken"): _BAD_KEY,
    (404, "BadPath"): _INVALID,
    (405, "MethodNotAllowed"): _INVALID,
    (410, "ExpiredToken"): Handling(ResponseAction.REMOVE),
    (410, "Unregistered"): Handling(ResponseAction.REMOVE),
    (413, "PayloadTooLarge"): Handling(ResponseAction.FAIL),
    (429, "TooManyProviderTokenUpdates"): Handling(ResponseAction.HOLD_TOKEN),
    (429, "TooManyRequests"): Handling(ResponseAction.DELAY_DEVICE),
    (500, "InternalServerError"): Handling(ResponseAction.BACK_OFF),
    (503, "ServiceUnavailable"): Handling(ResponseAction.BACK_OFF),
    (503, "Shutdown"): Handling(ResponseAction.RECONNECT),
}

_ACCEPTED = Handling(ResponseAction.ACCEPT)
_NO_RESPONSE = Handling(ResponseAction.REPEAT)
_SERVER_ERROR = Handling(ResponseAction.BACK_OFF)
_BY_STATUS = {403: _BAD_KEY, 410: Handling(ResponseAction.REMOVE), 429: Handling(ResponseAction.DELAY_DEVICE)}


def handling_of(result: ApnsResult) -> Handling:
    """Return how to handle a response; a reason that is not in the table is handled by its status."""
    if result.status == 200:
        return _ACCEPTED
    if result.is_unknown:
        return _NO_RESPONSE
    handling = HANDLINGS.get((result.status, result.reason)) or _BY_STATUS.get(result.status)
    return handling or (_INVALID if result.status < 500 else _SERVER_ERROR)


def label(result: ApnsResult) -> str:
    """The reason as a metric label: a documented reason, else the status, so that labels stay few."""
    return result.reason if (result.status, result.reason) in HANDLINGS else str(result.status)


FIRST_BACKOFF_MS = 1_000
MAX_BACKOFF_MS = 900_000
_STATUSES_OF_ACCEPTED_KEY = frozenset((200, 400, 410))


@dataclass(frozen=True, slots=True)
class RecordSent:
    """Record the push as sent."""


@dataclass(frozen=True, slots=True)
class RecordFailed:
    """Record the push as failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class RemoveToken:
    """Remove the token from the registry, then record the push as failed.

    `registered_before_ms`: keep a token that registered later; 0: remove it in any case.
    """

    reason: str
    registered_before_ms: int


@dataclass(frozen=True, slots=True)
class SuspectToken:
    """Record the push as failed, and remove the token once BadTokens is sure of it."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResendToSandbox:
    """Send at once to Apple's sandbox."""


@dataclass(frozen=True, slots=True)
class ResendWithNewToken:
    """Send at once with a new provider token."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Send after a back-off. `unknown`: why it is unknown whether Apple accepted the push; "" if it did not."""

    backoff_ms: int
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class DelayDevice:
    """Send nothing to the device during the back-off, then retry."""

    backoff_ms: int


Step = (
    RecordSent
    | RecordFailed
    | RemoveToken
    | SuspectToken
    | ResendToSandbox
    | ResendWithNewToken
    | RetryLater
    | DelayDevice
)


class CircuitChange(Enum):
    """Effect of a response on the circuit breaker of the whole app."""

    NONE = auto()
    OPEN = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step for a message, and its effect on the circuit breaker of the app. `alarm`: an operator has to act."""

    step: Step
    circuit: CircuitChange = CircuitChange.NONE
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class RetryHistory:
    """The retries of one message for one device so far.

    `retries`: back-offs. `sandbox`: the message goes to Apple's sandbox. `renewed`: a provider token was renewed for
    it. `unknown`: why it is unknown whether Apple has accepted the push already.
    """

    retries: int = 0
    sandbox: bool = False
    renewed: bool = False
    unknown: str = ""

    @property
    def next_backoff_ms(self) -> int:
        return backoff_ms(self.retries + 1)

    def apply(self, step: Step) -> "RetryHistory":
        match step:
            case ResendToSandbox():
                return replace(self, sandbox=True)
            case ResendWithNewToken():
                return replace(self, renewed=True)
            case RetryLater(_, unknown):
                return replace(self, retries=self.retries + 1, unknown=unknown or self.unknown)
            case DelayDevice():
                return replace(self, retries=self.retries + 1)
            case RecordSent() | RecordFailed() | RemoveToken() | SuspectToken():
                return self
            case _:
                assert_never(step)


def react(result: ApnsResult, history: RetryHistory, uses_both: bool) -> NextStep:
    """Decide the next step; `uses_both`: the app has devices in production and in the sandbox."""
    handling = handling_of(result)
    if handling.action is ResponseAction.STOP_APP:
        circuit = CircuitChange.OPEN
    else:
        circuit = CircuitChange.CLOSE if result.status in _STATUSES_OF_ACCEPTED_KEY else CircuitChange.NONE
    return NextStep(_step(handling.action, result, history, uses_both), circuit, handling.alarm)


def _step(action: ResponseAction, result: ApnsResult, history: RetryHistory, uses_both: bool) -> Step:
    match action:
        case ResponseAction.ACCEPT:
            return RecordSent()
        case ResponseAction.FAIL:
            return RecordFailed(result.reason)
        case ResponseAction.TRY_OTHER_ENVIRONMENT if uses_both and not history.sandbox:
            return ResendToSandbox()
        case ResponseAction.TRY_OTHER_ENVIRONMENT:
            return SuspectToken(result.reason)
        case ResponseAction.REMOVE:
            return RemoveToken(result.reason, result.timestamp_ms or 0)
        case ResponseAction.RENEW_TOKEN if not history.renewed:
            return ResendWithNewToken()
        case ResponseAction.DELAY_DEVICE:
            return DelayDevice(history.next_backoff_ms)
        case (
            ResponseAction.RENEW_TOKEN
            | ResponseAction.STOP_APP
            | ResponseAction.HOLD_TOKEN
            | ResponseAction.BACK_OFF
            | ResponseAction.RECONNECT
            | ResponseAction.REPEAT
        ):
            return RetryLater(history.next_backoff_ms, result.reason if result.is_unknown else "")
        case _:
            assert_never(action)


def backoff_ms(retries: int) -> int:
    """The wait before the given retry, counted from 1."""
    return min(FIRST_BACKOFF_MS << min(retries - 1, 30), MAX_BACKOFF_MS)


# Health of an app at Apple: circuit breaker, gauge of stopped apps, and rate-limited alarms.

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
