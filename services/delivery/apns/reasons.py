"""Apple's reasons and what follows from each, by Apple's documentation of responses."""

from enum import Enum, auto
from typing import NamedTuple

from services.delivery.apns.push import ApnsResult


class Action(Enum):
    """What is done about an answer; RECORDS are the end of the push to this device."""

    ACCEPT = auto()
    """Apple took it."""

    FAIL = auto()
    """It cannot go well: our fault, or the app server's."""

    REMOVE = auto()
    """The device does not have the app any more: out of the registry, unless it registered since."""

    TRY_OTHER_ENVIRONMENT = auto()
    """Unknown here: once to Apple's other service where the app uses both, else like REMOVE."""

    STOP_APP = auto()
    """The app's key is not accepted: its pushes wait, and one now and then tries."""

    RENEW_TOKEN = auto()
    """A new provider token, and again at once; the second time like STOP_APP."""

    HOLD_TOKEN = auto()
    """Too many new provider tokens: none for a while, another connection after a rest."""

    DELAY_DEVICE = auto()
    """Too much to one device: it alone waits."""

    BACK_OFF = auto()
    """Apple's trouble: the connection rests, the push comes again later."""

    RECONNECT = auto()
    """Apple ends the connection: another one, and the push comes again."""

    REPEAT = auto()
    """Nobody knows whether Apple took it: again, with the same collapse id."""


class Verdict(NamedTuple):
    action: Action
    alarm: bool = False
    """Whether an operator has to do something."""


_FAULT = Verdict(Action.FAIL, alarm=True)
_BAD_KEY = Verdict(Action.STOP_APP, alarm=True)

REASONS: dict[tuple[int, str], Verdict] = {
    (400, "BadCollapseId"): _FAULT,
    (400, "BadDeviceToken"): Verdict(Action.TRY_OTHER_ENVIRONMENT),
    (400, "BadExpirationDate"): _FAULT,
    (400, "BadMessageId"): _FAULT,
    (400, "BadPriority"): _FAULT,
    (400, "BadTopic"): _FAULT,
    (400, "DeviceTokenNotForTopic"): _FAULT,
    (400, "DuplicateHeaders"): _FAULT,
    (400, "IdleTimeout"): Verdict(Action.RECONNECT),
    (400, "InvalidPushType"): _FAULT,
    (400, "MissingDeviceToken"): _FAULT,
    (400, "MissingTopic"): _FAULT,
    (400, "PayloadEmpty"): _FAULT,
    (400, "TopicDisallowed"): _FAULT,
    (403, "BadCertificate"): _BAD_KEY,
    (403, "BadCertificateEnvironment"): _BAD_KEY,
    (403, "BadEnvironmentKeyIdInToken"): _BAD_KEY,
    (403, "BadEnvironmentKeyInToken"): _BAD_KEY,
    (403, "ExpiredProviderToken"): Verdict(Action.RENEW_TOKEN),
    (403, "Forbidden"): _BAD_KEY,
    (403, "InvalidProviderToken"): _BAD_KEY,
    (403, "MissingProviderToken"): _BAD_KEY,
    (403, "UnrelatedKeyIdInToken"): _BAD_KEY,
    (404, "BadPath"): _FAULT,
    (405, "MethodNotAllowed"): _FAULT,
    (410, "ExpiredToken"): Verdict(Action.REMOVE),
    (410, "Unregistered"): Verdict(Action.REMOVE),
    (413, "PayloadTooLarge"): Verdict(Action.FAIL),
    (429, "TooManyProviderTokenUpdates"): Verdict(Action.HOLD_TOKEN, alarm=True),
    (429, "TooManyRequests"): Verdict(Action.DELAY_DEVICE),
    (500, "InternalServerError"): Verdict(Action.BACK_OFF),
    (503, "ServiceUnavailable"): Verdict(Action.BACK_OFF),
    (503, "Shutdown"): Verdict(Action.RECONNECT),
}

_ACCEPTED = Verdict(Action.ACCEPT)
_UNKNOWN = Verdict(Action.REPEAT)
_BY_STATUS = {403: _BAD_KEY, 410: Verdict(Action.REMOVE), 429: Verdict(Action.DELAY_DEVICE)}


def verdict(result: ApnsResult) -> Verdict:
    """What an answer means; a reason that Apple adds one day is taken by its status."""
    if result.status == 200:
        return _ACCEPTED
    if result.unknown:
        return _UNKNOWN
    known = REASONS.get((result.status, result.reason)) or _BY_STATUS.get(result.status)
    return known or (_FAULT if result.status < 500 else Verdict(Action.BACK_OFF))


def label(result: ApnsResult) -> str:
    """The reason as a metric's label: one of the table's, or the status."""
    return result.reason if (result.status, result.reason) in REASONS else str(result.status)
