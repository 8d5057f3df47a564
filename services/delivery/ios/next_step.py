"""Decides the next step for a message from Apple's response to it."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import assert_never

from services.delivery.apns.push import ApnsResult
from services.delivery.apns.reasons import Action, handling_of

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
    """What has happened to one message for one device so far.

    `retries`: its back-offs. `sandbox`: it goes to Apple's sandbox. `renewed`: a provider token was renewed for it.
    `unknown`: why it is unknown whether Apple has accepted the push already.
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
    if handling.action is Action.STOP_APP:
        circuit = CircuitChange.OPEN
    else:
        circuit = CircuitChange.CLOSE if result.status in _STATUSES_OF_ACCEPTED_KEY else CircuitChange.NONE
    return NextStep(_step(handling.action, result, history, uses_both), circuit, handling.alarm)


def _step(action: Action, result: ApnsResult, history: RetryHistory, uses_both: bool) -> Step:
    match action:
        case Action.ACCEPT:
            return RecordSent()
        case Action.FAIL:
            return RecordFailed(result.reason)
        case Action.TRY_OTHER_ENVIRONMENT if uses_both and not history.sandbox:
            return ResendToSandbox()
        case Action.TRY_OTHER_ENVIRONMENT:
            return SuspectToken(result.reason)
        case Action.REMOVE:
            return RemoveToken(result.reason, result.timestamp_ms or 0)
        case Action.RENEW_TOKEN if not history.renewed:
            return ResendWithNewToken()
        case Action.DELAY_DEVICE:
            return DelayDevice(history.next_backoff_ms)
        case (
            Action.RENEW_TOKEN
            | Action.STOP_APP
            | Action.HOLD_TOKEN
            | Action.BACK_OFF
            | Action.RECONNECT
            | Action.REPEAT
        ):
            return RetryLater(history.next_backoff_ms, result.reason if result.is_unknown else "")
        case _:
            assert_never(action)


def backoff_ms(retries: int) -> int:
    """The wait before the given retry, counted from 1."""
    return min(FIRST_BACKOFF_MS << min(retries - 1, 30), MAX_BACKOFF_MS)
