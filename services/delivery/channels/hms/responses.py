"""The table of Huawei's answers to HMS requests: what follows from each for the message, its address and its app."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, assert_never

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

UNKNOWN = 0
ACCEPTED = "80000000"
SOME_REFUSED = "80100000"
ALL_INVALID = "80300007"


class AnswerAction(Enum):
    """What an answer means."""

    ACCEPT = auto()
    """Huawei has the message."""

    FAIL = auto()
    """The request is wrong, and would be again."""

    REMOVE = auto()
    """The address is no more, or that of another app."""

    RENEW_TOKEN = auto()
    """Huawei does not accept the access token: send once with a new one, then stop the app."""

    STOP_APP = auto()
    """Huawei does not accept the app's credentials: open the app's circuit and retry."""

    LOWER = auto()
    """The app has no right to high importance: send once with a normal one."""

    SPLIT = auto()
    """There are too many addresses in a request: the sender makes it smaller."""

    RETRY = auto()
    """Huawei did not accept the message; it may later."""

    REPEAT = auto()
    """It is unknown whether Huawei accepted the message: retry with the same tag."""


class Code(NamedTuple):
    """The meaning of a result code. `words`: for people, short, and nothing of a request."""

    action: AnswerAction
    words: str = ""


CREDENTIALS_REFUSED = "client secret refused"
"""In the place of a code, where Huawei grants no access token, so that no request is made."""

NO_ACCESS_TOKEN = "no access token yet"  # noqa: S105  # a reason, no secret
"""In the place of a code, while the token server does not answer, so that no request is made."""

CODES: Mapping[str, Code] = {
    ACCEPTED: Code(AnswerAction.ACCEPT),
    SOME_REFUSED: Code(AnswerAction.REMOVE, "invalid token"),
    "80100001": Code(AnswerAction.FAIL, "wrong parameter"),
    "80100002": Code(AnswerAction.SPLIT, "one token only"),
    "80100003": Code(AnswerAction.FAIL, "wrong message"),
    "80100004": Code(AnswerAction.FAIL, "wrong time to live"),
    "80100013": Code(AnswerAction.FAIL, "wrong collapse key"),
    "80100016": Code(AnswerAction.FAIL, "sensitive words"),
    "80100017": Code(AnswerAction.FAIL, "too many topic messages"),
    "80100018": Code(AnswerAction.FAIL, "refused by review"),
    "80200001": Code(AnswerAction.RENEW_TOKEN, "not authenticated"),
    "80200003": Code(AnswerAction.RENEW_TOKEN, "access token expired"),
    "80300002": Code(AnswerAction.STOP_APP, "no permission"),
    ALL_INVALID: Code(AnswerAction.REMOVE, "all tokens invalid"),
    "80300008": Code(AnswerAction.FAIL, "message too large"),
    "80300010": Code(AnswerAction.SPLIT, "number of tokens"),
    "80300011": Code(AnswerAction.LOWER, "no right to high importance"),
    "80300013": Code(AnswerAction.FAIL, "wrong receipt URL"),
    "80600003": Code(AnswerAction.RETRY, "token check unavailable"),
    "81000001": Code(AnswerAction.REPEAT, "internal error"),
    CREDENTIALS_REFUSED: Code(AnswerAction.STOP_APP),
    NO_ACCESS_TOKEN: Code(AnswerAction.RETRY),
}
"""Documented result codes, and two of our own; any other is handled by its beginning, or by the status."""

_BY_BEGINNING: Mapping[str, AnswerAction] = {
    "801": AnswerAction.FAIL,
    "802": AnswerAction.RENEW_TOKEN,
    "803": AnswerAction.STOP_APP,
    "806": AnswerAction.RETRY,
    "810": AnswerAction.REPEAT,
}
_BY_STATUS: Mapping[int, AnswerAction] = {
    401: AnswerAction.RENEW_TOKEN,
    403: AnswerAction.STOP_APP,
    404: AnswerAction.STOP_APP,
    429: AnswerAction.RETRY,
    503: AnswerAction.RETRY,
}
FLOW_CONTROL = frozenset((429, 503))
"""Statuses after which Huawei wants no requests for a while."""


@dataclass(frozen=True, slots=True)
class HmsAnswer:
    """Huawei's answer to a message. Status UNKNOWN: there was none, so Huawei may or may not have accepted it.

    `code`: Huawei's result code, or "". `why`: in its place, why there is no answer.
    """

    status: int
    code: str = ""
    why: str = ""
    retry_after_ms: int = 0

    @property
    def reason(self) -> str:
        """The code and its meaning; nothing of what Huawei writes besides, which may quote the message."""
        if self.code == ACCEPTED:
            return ""
        if self.code:
            known = CODES.get(self.code)
            return f"{self.code} {known.words}" if known and known.words else self.code
        return self.why or f"HTTP {self.status}"


RENEWED = "new access token"
PLAIN = "normal importance"
"""Variants of a message: its access token was renewed; it asks for no high importance."""

_ALARM = "Huawei refuses HMS messages"
_CREDENTIALS_REFUSED = (
    "Huawei does not accept the app's client ID and secret: set others with carillon app set APPKEY --hms-client-id ID"
    " --hms-client-secret FILE"
)
_CREDENTIALS_ACCEPTED = frozenset(
    (AnswerAction.ACCEPT, AnswerAction.FAIL, AnswerAction.REMOVE, AnswerAction.LOWER, AnswerAction.SPLIT)
)


def action_of(answer: HmsAnswer) -> AnswerAction:
    """Return what an answer means."""
    if answer.status == UNKNOWN:
        return AnswerAction.REPEAT
    if known := CODES.get(answer.code):
        return known.action
    if action := _BY_BEGINNING.get(answer.code[:3]) or _BY_STATUS.get(answer.status):
        return action
    return AnswerAction.FAIL if 300 <= answer.status < 500 else AnswerAction.REPEAT


def label(answer: HmsAnswer) -> str:
    """The answer as a metric label: a documented code, or the status, so that labels stay few."""
    return answer.reason or answer.code if answer.code in CODES else str(answer.status or "none")


def react(answer: HmsAnswer, history: RetryHistory) -> Reaction:
    """Decide what follows for one message."""
    action = action_of(answer)
    alarm = f"{_ALARM}: {answer.reason}"
    circuit = CircuitChange.CLOSE if answer.code and action in _CREDENTIALS_ACCEPTED else CircuitChange.NONE
    match action:
        case AnswerAction.ACCEPT:
            return Reaction(RecordSent(), circuit)
        case AnswerAction.REMOVE:
            return Reaction(RemoveAddress(), circuit)
        case AnswerAction.LOWER if PLAIN not in history.variants:
            return Reaction(ResendOnce(PLAIN), circuit)
        case AnswerAction.FAIL | AnswerAction.LOWER | AnswerAction.SPLIT:
            return Reaction(RecordFailed(), circuit, alarm)
        case AnswerAction.RENEW_TOKEN if RENEWED not in history.variants:
            return Reaction(ResendOnce(RENEWED))
        case AnswerAction.RENEW_TOKEN | AnswerAction.STOP_APP:
            told = _CREDENTIALS_REFUSED if answer.code == CREDENTIALS_REFUSED else alarm
            return Reaction(RetryLater(), CircuitChange.OPEN, told)
        case AnswerAction.RETRY | AnswerAction.REPEAT:
            return Reaction(RetryLater(answer.retry_after_ms, is_unknown=action is AnswerAction.REPEAT))
        case _:
            assert_never(action)


# Answers as Huawei writes them.


class _Body(msgspec.Struct):
    code: str = ""
    msg: str = ""


class _Partly(msgspec.Struct):
    illegal_tokens: list[str]


_bodies = msgspec.json.Decoder(_Body)
_partly = msgspec.json.Decoder(_Partly)
_MAX_CODE = 20


class BatchAnswer(NamedTuple):
    """An answer to a request for many devices. `invalid`: tokens that it calls invalid, where it accepted others."""

    answer: HmsAnswer
    invalid: frozenset[str] = frozenset()

    def of(self, token: str) -> HmsAnswer:
        """Return the answer for one of its devices."""
        if self.answer.code == SOME_REFUSED and token not in self.invalid:
            return HmsAnswer(self.answer.status, ACCEPTED)
        return self.answer


def parse_answer(status: int, retry_after: str, body: bytes, now_ms: int) -> BatchAnswer:
    """Read an answer. `retry_after`: the header, "" for none."""
    wait_ms = retry_after_ms(retry_after, now_ms)
    try:
        found = _bodies.decode(body)
        invalid = _partly.decode(found.msg).illegal_tokens if found.code == SOME_REFUSED else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        why = "unreadable answer" if status == 200 else ""
        return BatchAnswer(HmsAnswer(status, why=why, retry_after_ms=wait_ms))
    return BatchAnswer(HmsAnswer(status, found.code[:_MAX_CODE], retry_after_ms=wait_ms), frozenset(invalid))
