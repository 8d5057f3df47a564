"""The table of Apple's responses: what follows from each for the message, its app, the connection and the token."""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, assert_never

from services.delivery.channels import (
    CircuitChange,
    DelayDevice,
    Reaction,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
    Step,
)
from services.delivery.channels.apns.request import ApnsResult

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


class ApnsHandling(NamedTuple):
    """The action after a response. `alarm`: an operator has to act."""

    action: ResponseAction
    alarm: bool = False


_INVALID = ApnsHandling(ResponseAction.FAIL, alarm=True)
_BAD_KEY = ApnsHandling(ResponseAction.STOP_APP, alarm=True)

HANDLINGS: dict[tuple[int, str], ApnsHandling] = {
    (400, "BadCollapseId"): _INVALID,
    (400, "BadDeviceToken"): ApnsHandling(ResponseAction.TRY_OTHER_ENVIRONMENT),
    (400, "BadExpirationDate"): _INVALID,
    (400, "BadMessageId"): _INVALID,
    (400, "BadPriority"): _INVALID,
    (400, "BadTopic"): _INVALID,
    (400, "DeviceTokenNotForTopic"): _INVALID,
    (400, "DuplicateHeaders"): _INVALID,
    (400, "IdleTimeout"): ApnsHandling(ResponseAction.RECONNECT),
    (400, "InvalidPushType"): _INVALID,
    (400, "MissingDeviceToken"): _INVALID,
    (400, "MissingTopic"): _INVALID,
    (400, "PayloadEmpty"): _INVALID,
    (400, "TopicDisallowed"): _INVALID,
    (403, "BadCertificate"): _BAD_KEY,
    (403, "BadCertificateEnvironment"): _BAD_KEY,
    (403, "BadEnvironmentKeyIdInToken"): _BAD_KEY,
    (403, "BadEnvironmentKeyInToken"): _BAD_KEY,
    (403, "ExpiredProviderToken"): ApnsHandling(ResponseAction.RENEW_TOKEN),
    (403, "Forbidden"): _BAD_KEY,
    (403, "InvalidProviderToken"): _BAD_KEY,
    (403, "MissingProviderToken"): _BAD_KEY,
    (403, "UnrelatedKeyIdInToken"): _BAD_KEY,
    (404, "BadPath"): _INVALID,
    (405, "MethodNotAllowed"): _INVALID,
    (410, "ExpiredToken"): ApnsHandling(ResponseAction.REMOVE),
    (410, "Unregistered"): ApnsHandling(ResponseAction.REMOVE),
    (413, "PayloadTooLarge"): ApnsHandling(ResponseAction.FAIL),
    (429, "TooManyProviderTokenUpdates"): ApnsHandling(ResponseAction.HOLD_TOKEN),
    (429, "TooManyRequests"): ApnsHandling(ResponseAction.DELAY_DEVICE),
    (500, "InternalServerError"): ApnsHandling(ResponseAction.BACK_OFF),
    (503, "ServiceUnavailable"): ApnsHandling(ResponseAction.BACK_OFF),
    (503, "Shutdown"): ApnsHandling(ResponseAction.RECONNECT),
}

_ACCEPTED = ApnsHandling(ResponseAction.ACCEPT)
_NO_RESPONSE = ApnsHandling(ResponseAction.REPEAT)
_SERVER_ERROR = ApnsHandling(ResponseAction.BACK_OFF)
_BY_STATUS = {403: _BAD_KEY, 410: ApnsHandling(ResponseAction.REMOVE), 429: ApnsHandling(ResponseAction.DELAY_DEVICE)}


def handling_of(result: ApnsResult) -> ApnsHandling:
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


SANDBOX = "sandbox"
RENEWED = "new provider token"
"""Variants of a message: it goes to Apple's sandbox; a provider token was renewed for it."""

_ALARM = "Apple refuses pushes"
_STATUSES_OF_ACCEPTED_KEY = frozenset((200, 400, 410))


def react(result: ApnsResult, history: RetryHistory, uses_both: bool, judge: Callable[[], Step]) -> Reaction:
    """Decide what follows. `uses_both`: the app has devices in production and in the sandbox. `judge`: the step for a
    token that Apple calls bad wherever the app has devices.
    """
    handling = handling_of(result)
    if handling.action is ResponseAction.STOP_APP:
        circuit = CircuitChange.OPEN
    else:
        circuit = CircuitChange.CLOSE if result.status in _STATUSES_OF_ACCEPTED_KEY else CircuitChange.NONE
    step = _step(handling.action, result, history, uses_both, judge)
    return Reaction(step, circuit, _ALARM if handling.alarm else "")


def _step(
    action: ResponseAction, result: ApnsResult, history: RetryHistory, uses_both: bool, judge: Callable[[], Step]
) -> Step:
    match action:
        case ResponseAction.ACCEPT:
            return RecordSent()
        case ResponseAction.FAIL:
            return RecordFailed()
        case ResponseAction.TRY_OTHER_ENVIRONMENT if uses_both and SANDBOX not in history.variants:
            return ResendOnce(SANDBOX)
        case ResponseAction.TRY_OTHER_ENVIRONMENT:
            return judge()
        case ResponseAction.REMOVE:
            return RemoveAddress(result.timestamp_ms or 0)
        case ResponseAction.RENEW_TOKEN if RENEWED not in history.variants:
            return ResendOnce(RENEWED)
        case ResponseAction.DELAY_DEVICE:
            return DelayDevice()
        case (
            ResponseAction.RENEW_TOKEN
            | ResponseAction.STOP_APP
            | ResponseAction.HOLD_TOKEN
            | ResponseAction.BACK_OFF
            | ResponseAction.RECONNECT
            | ResponseAction.REPEAT
        ):
            return RetryLater(is_unknown=result.is_unknown)
        case _:
            assert_never(action)
