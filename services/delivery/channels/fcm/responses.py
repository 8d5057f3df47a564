"""The table of Google's answers to FCM requests: what follows from each for the message, its address and its app."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, assert_never

import msgspec

from services.delivery.channels import (
    CircuitChange,
    Reaction,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
    retry_after_ms,
)
from services.domain.recorded_reasons import FixedReason

UNKNOWN = 0


@dataclass(frozen=True, slots=True)
class FcmAnswer:
    """Google's answer. Status UNKNOWN: there was none, so Google may or may not have accepted the message.

    `code`: the errorCode, or the canonical status. `field`: the field of the request that is wrong, "" for none.
    `name`: Google's name of an accepted message.
    """

    status: int
    code: str = ""
    field: str = ""
    name: str = ""
    retry_after_ms: int = 0

    @property
    def reason(self) -> str:
        """The code, and the field that is wrong."""
        return f"{self.code} {self.field}" if self.field else self.code

    @property
    def is_unknown(self) -> bool:
        return self.status == UNKNOWN


class FcmAction(Enum):
    """The consequence of an answer."""

    ACCEPT = auto()
    """Google has the message. It sends no receipt."""

    FAIL = auto()
    """The request is wrong, and would be again."""

    REMOVE = auto()
    """The address is no more, or that of another project."""

    RENEW_TOKEN = auto()
    """Google does not accept the access token: send once with a new one, then stop the app."""

    STOP_APP = auto()
    """Google does not accept the app's credentials or project: open the app's circuit and retry."""

    RETRY = auto()
    """Google did not accept the message; it may later."""

    REPEAT = auto()
    """It is unknown whether Google accepted the message: retry with the same tag."""


BAD_ADDRESS = "message.token"
"""The field of an INVALID_ARGUMENT about the address."""

ACCOUNT_REFUSED = FixedReason.ACCOUNT_REFUSED
"""The code of the answer, with 401, where Google grants no access token, so that no request is made."""

NO_ACCESS_TOKEN = FixedReason.NO_ACCESS_TOKEN
"""The code of the answer, with 503, while the token server does not answer, so that no request is made."""

HANDLINGS: Mapping[tuple[int, str], FcmAction] = {
    (400, "INVALID_ARGUMENT"): FcmAction.FAIL,
    (401, "THIRD_PARTY_AUTH_ERROR"): FcmAction.STOP_APP,
    (401, "UNAUTHENTICATED"): FcmAction.RENEW_TOKEN,
    (401, ACCOUNT_REFUSED): FcmAction.STOP_APP,
    (403, "SENDER_ID_MISMATCH"): FcmAction.REMOVE,
    (403, "PERMISSION_DENIED"): FcmAction.STOP_APP,
    (404, "UNREGISTERED"): FcmAction.REMOVE,
    (404, "NOT_FOUND"): FcmAction.STOP_APP,
    (429, "QUOTA_EXCEEDED"): FcmAction.RETRY,
    (500, "INTERNAL"): FcmAction.REPEAT,
    (503, "UNAVAILABLE"): FcmAction.RETRY,
}
"""Documented answers, and one of our own; any other is handled by its status."""

_BY_STATUS: Mapping[int, FcmAction] = {
    401: FcmAction.RENEW_TOKEN,
    403: FcmAction.STOP_APP,
    404: FcmAction.STOP_APP,
    429: FcmAction.RETRY,
    503: FcmAction.RETRY,
}

RENEWED = "new access token"
"""A variant of a message: its access token was renewed."""

QUOTA_WAIT_MS = 60_000
"""The wait after 429 without Retry-After: Google refills the quota each minute."""

_ALARM = "Google refuses FCM messages"
_ACCOUNT_REFUSED = (
    "Google does not accept the app's service account for FCM: is its key deleted, or this machine's clock wrong? Set"
    " another one with carillon app set APPKEY --fcm-service-account FILE"
)
_STATUSES_OF_ACCEPTED_CREDENTIALS = frozenset((200, 400))


class FcmHandling(NamedTuple):
    """The action after an answer. `alarm`: an operator has to act."""

    action: FcmAction
    alarm: bool = False


def handling_of(answer: FcmAnswer) -> FcmHandling:
    """Return how to handle an answer."""
    if answer.status == 200:
        return FcmHandling(FcmAction.ACCEPT)
    if answer.is_unknown:
        return FcmHandling(FcmAction.REPEAT)
    if answer.status == 400 and answer.field == BAD_ADDRESS:
        return FcmHandling(FcmAction.REMOVE)
    action = HANDLINGS.get((answer.status, answer.code)) or _BY_STATUS.get(answer.status)
    action = action or (FcmAction.FAIL if answer.status < 500 else FcmAction.REPEAT)
    return FcmHandling(action, alarm=action in (FcmAction.FAIL, FcmAction.STOP_APP))


def label(answer: FcmAnswer) -> str:
    """The answer as a metric label: the status and a documented code, so that labels stay few; a wrong address too."""
    status = str(answer.status or "none")
    if (answer.status, answer.code) not in HANDLINGS:
        return status
    return f"{status} {answer.code}" + (f" {BAD_ADDRESS}" if answer.field == BAD_ADDRESS else "")


def react(answer: FcmAnswer, history: RetryHistory) -> Reaction:
    """Decide what follows."""
    action, alarm = handling_of(answer)
    told = _alarm_text(answer) if alarm else ""
    circuit = CircuitChange.CLOSE if answer.status in _STATUSES_OF_ACCEPTED_CREDENTIALS else CircuitChange.NONE
    match action:
        case FcmAction.ACCEPT:
            return Reaction(RecordSent(), circuit)
        case FcmAction.FAIL:
            return Reaction(RecordFailed(), circuit, told)
        case FcmAction.REMOVE:
            return Reaction(RemoveAddress(), circuit)
        case FcmAction.RENEW_TOKEN if RENEWED not in history.variants:
            return Reaction(ResendOnce(RENEWED))
        case FcmAction.RENEW_TOKEN | FcmAction.STOP_APP:
            return Reaction(RetryLater(), CircuitChange.OPEN, told or _ALARM)
        case FcmAction.RETRY | FcmAction.REPEAT:
            at_least_ms = answer.retry_after_ms or (QUOTA_WAIT_MS if answer.status == 429 else 0)
            return Reaction(RetryLater(at_least_ms, is_unknown=action is FcmAction.REPEAT))
        case _:
            assert_never(action)


def _alarm_text(answer: FcmAnswer) -> str:
    if answer.code == ACCOUNT_REFUSED:
        return _ACCOUNT_REFUSED
    return f"{_ALARM}{f': {answer.field}' if answer.field else ''}"


# Answers as Google writes them.

_FCM_ERROR = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
_BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
_NOT_AN_ADDRESS = "not a valid FCM registration token"
_MAX_TEXT = 100


class _Error(msgspec.Struct):
    message: str = ""
    status: str = ""
    details: list[dict[str, Any]] = []


class _Body(msgspec.Struct):
    name: str = ""
    error: _Error | None = None


_bodies = msgspec.json.Decoder(_Body)


def parse_answer(status: int, retry_after: str, body: bytes, now_ms: int) -> FcmAnswer:
    """Read an answer. `retry_after`: the header, "" for none. Without a code the answer's names the status."""
    try:
        found = _bodies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _Body()
    if status == 200:
        return FcmAnswer(200, name=found.name[:_MAX_TEXT])
    error = found.error or _Error()
    codes = [str(each.get("errorCode", "")) for each in error.details if each.get("@type") == _FCM_ERROR]
    code = next(filter(None, codes), error.status)[:_MAX_TEXT] or f"HTTP {status}"
    return FcmAnswer(status, code, _wrong_field(error), retry_after_ms=retry_after_ms(retry_after, now_ms))


def _wrong_field(error: _Error) -> str:
    """Return the first field that the answer calls wrong; BAD_ADDRESS also where only its text says so."""
    for detail in error.details:
        violations = detail.get("fieldViolations") if detail.get("@type") == _BAD_REQUEST else None
        for violation in violations if isinstance(violations, Sequence) and not isinstance(violations, str) else ():
            if isinstance(violation, Mapping) and violation.get("field"):
                return str(violation["field"])[:_MAX_TEXT]
    return BAD_ADDRESS if _NOT_AN_ADDRESS in error.message else ""
