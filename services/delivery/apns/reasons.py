"""Handling of Apple's responses: the action for each (status, reason), by Apple's documentation."""

from enum import Enum, auto
from typing import NamedTuple

from services.delivery.apns.push import ApnsResult


class Action(Enum):
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
    """`alarm`: whether an operator has to act."""

    action: Action
    alarm: bool = False


_INVALID = Handling(Action.FAIL, alarm=True)
_BAD_KEY = Handling(Action.STOP_APP, alarm=True)

HANDLINGS: dict[tuple[int, str], Handling] = {
    (400, "BadCollapseId"): _INVALID,
    (400, "BadDeviceToken"): Handling(Action.TRY_OTHER_ENVIRONMENT),
    (400, "BadExpirationDate"): _INVALID,
    (400, "BadMessageId"): _INVALID,
    (400, "BadPriority"): _INVALID,
    (400, "BadTopic"): _INVALID,
    (400, "DeviceTokenNotForTopic"): _INVALID,
    (400, "DuplicateHeaders"): _INVALID,
    (400, "IdleTimeout"): Handling(Action.RECONNECT),
    (400, "InvalidPushType"): _INVALID,
    (400, "MissingDeviceToken"): _INVALID,
    (400, "MissingTopic"): _INVALID,
    (400, "PayloadEmpty"): _INVALID,
    (400, "TopicDisallowed"): _INVALID,
    (403, "BadCertificate"): _BAD_KEY,
    (403, "BadCertificateEnvironment"): _BAD_KEY,
    (403, "BadEnvironmentKeyIdInToken"): _BAD_KEY,
    (403, "BadEnvironmentKeyInToken"): _BAD_KEY,
    (403, "ExpiredProviderToken"): Handling(Action.RENEW_TOKEN),
    (403, "Forbidden"): _BAD_KEY,
    (403, "InvalidProviderToken"): _BAD_KEY,
    (403, "MissingProviderToken"): _BAD_KEY,
    (403, "UnrelatedKeyIdInToken"): _BAD_KEY,
    (404, "BadPath"): _INVALID,
    (405, "MethodNotAllowed"): _INVALID,
    (410, "ExpiredToken"): Handling(Action.REMOVE),
    (410, "Unregistered"): Handling(Action.REMOVE),
    (413, "PayloadTooLarge"): Handling(Action.FAIL),
    (429, "TooManyProviderTokenUpdates"): Handling(Action.HOLD_TOKEN),
    (429, "TooManyRequests"): Handling(Action.DELAY_DEVICE),
    (500, "InternalServerError"): Handling(Action.BACK_OFF),
    (503, "ServiceUnavailable"): Handling(Action.BACK_OFF),
    (503, "Shutdown"): Handling(Action.RECONNECT),
}

_ACCEPTED = Handling(Action.ACCEPT)
_NO_RESPONSE = Handling(Action.REPEAT)
_SERVER_ERROR = Handling(Action.BACK_OFF)
_BY_STATUS = {403: _BAD_KEY, 410: Handling(Action.REMOVE), 429: Handling(Action.DELAY_DEVICE)}


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
