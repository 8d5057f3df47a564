"""Answers that are codes: what follows from each, by the table of a vendor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Generic, NamedTuple, TypeVar, assert_never

from services.delivery.channels import (
    CircuitChange,
    Reaction,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
)
from services.domain.recorded_reasons import FixedReason

UNKNOWN = 0

CREDENTIALS_REFUSED = FixedReason.CREDENTIALS_REFUSED
"""In the place of a code, where the vendor grants no access token, so that no request is made."""

NO_ACCESS_TOKEN = FixedReason.NO_ACCESS_TOKEN
"""In the place of a code, while the token server does not answer, so that no request is made."""

DAILY_CAP = FixedReason.DAILY_CAP
"""In the place of a code, where the device has had its messages of the day, so that no request is made."""

RENEWED = "new access token"
PLAIN = "without what needs a right"
AGAIN = "once more"
"""Variants of a message: its access token was renewed; it asks for nothing that needs a right; it is sent again."""


class AnswerAction(Enum):
    """What an answer means."""

    ACCEPT = auto()
    """The vendor has the message."""

    FAIL = auto()
    """The request is wrong, and would be again."""

    RETURN = auto()
    """The vendor does not carry it to this device; nothing is wrong with the request."""

    REMOVE = auto()
    """The address is no more, or that of another app."""

    RENEW_TOKEN = auto()
    """The vendor does not accept the access token: send once with a new one, then stop the app."""

    STOP_APP = auto()
    """The vendor does not accept the app's credentials: open the app's circuit and retry."""

    LOWER = auto()
    """The app lacks a right that the message asks for: send once without that."""

    SEND_AGAIN = auto()
    """It may be accepted the second time: send once more at once."""

    USED_UP = auto()
    """The day's quota of such messages is used up: send none of them until the vendor's next day."""

    SPLIT = auto()
    """There are too many addresses in a request: the sender makes it smaller."""

    RETRY = auto()
    """The vendor did not accept the message; it may later."""

    SLOW_DOWN = auto()
    """The vendor did not accept the message, and wants no requests for a while."""

    REPEAT = auto()
    """It is unknown whether the vendor accepted the message: retry with the same tag."""


class AnswerCode(NamedTuple):
    """The meaning of a result code. `words`: for people, short, and nothing of a request."""

    action: AnswerAction
    words: str = ""


_BY_STATUS: Mapping[int, AnswerAction] = {
    401: AnswerAction.RENEW_TOKEN,
    403: AnswerAction.STOP_APP,
    404: AnswerAction.STOP_APP,
    429: AnswerAction.SLOW_DOWN,
    503: AnswerAction.SLOW_DOWN,
}

_CREDENTIALS_ACCEPTED = frozenset(
    (
        AnswerAction.ACCEPT,
        AnswerAction.FAIL,
        AnswerAction.RETURN,
        AnswerAction.REMOVE,
        AnswerAction.LOWER,
        AnswerAction.SPLIT,
        AnswerAction.SEND_AGAIN,
        AnswerAction.USED_UP,
    )
)


def listed(action: AnswerAction, meaning: str, codes: str) -> dict[str, AnswerCode]:
    """Return the rows of codes, between spaces, that have one action and meaning."""
    return dict.fromkeys(codes.split(), AnswerCode(action, meaning))


UNLISTED: Mapping[str, AnswerAction] = dict.fromkeys("-0123456789", AnswerAction.FAIL)
"""Beginnings of all numbers: a code that a vendor does not list refuses the message."""


OWN_CODES: Mapping[str, AnswerCode] = {
    CREDENTIALS_REFUSED: AnswerCode(AnswerAction.STOP_APP),
    NO_ACCESS_TOKEN: AnswerCode(AnswerAction.RETRY),
    DAILY_CAP: AnswerCode(AnswerAction.RETURN),
}
"""Codes of our own, where no request is made: a part of each table."""


class AnswerTable(NamedTuple):
    """The codes of one call of a vendor.

    `codes`: the documented ones, and two of our own. `by_beginning`: any other, handled by its beginning or else by the
    status. `alarm`, `credentials_refused`: what people are told of refusals, and of refused credentials.
    """

    codes: Mapping[str, AnswerCode]
    by_beginning: Mapping[str, AnswerAction]
    alarm: str
    credentials_refused: str


@dataclass(frozen=True, slots=True)
class CodedAnswer:
    """A vendor's answer to a message. Status UNKNOWN: there was none, so the vendor may or may not have accepted it.

    `code`: the vendor's result code, or "". `why`: in its place, why there is no answer.
    """

    table: ClassVar[AnswerTable]

    status: int
    code: str = ""
    why: str = ""
    retry_after_ms: int = 0

    @property
    def reason(self) -> str:
        """The code and its meaning; nothing of what the vendor writes besides, which may quote the message."""
        if self.action is AnswerAction.ACCEPT:
            return ""
        if self.code:
            known = self.table.codes.get(self.code)
            return f"{self.code} {known.words}" if known and known.words else self.code
        return self.why or f"HTTP {self.status}"

    @property
    def action(self) -> AnswerAction:
        """What the answer means."""
        if self.status == UNKNOWN:
            return AnswerAction.REPEAT
        if known := self.table.codes.get(self.code):
            return known.action
        for beginning, action in self.table.by_beginning.items():
            if self.code.startswith(beginning):
                return action
        if action_of_status := _BY_STATUS.get(self.status):
            return action_of_status
        return AnswerAction.FAIL if 300 <= self.status < 500 else AnswerAction.REPEAT

    @property
    def label(self) -> str:
        """The answer as a metric label: a documented code, or the status, so that labels stay few."""
        return self.reason or self.code if self.code in self.table.codes else str(self.status or "none")


def react(answer: CodedAnswer, history: RetryHistory) -> Reaction:
    """Decide what follows for one message."""
    action = answer.action
    alarm = f"{answer.table.alarm}: {answer.reason}"
    circuit = CircuitChange.CLOSE if answer.code and action in _CREDENTIALS_ACCEPTED else CircuitChange.NONE
    match action:
        case AnswerAction.ACCEPT:
            return Reaction(RecordSent(), circuit)
        case AnswerAction.REMOVE:
            return Reaction(RemoveAddress(), circuit)
        case AnswerAction.LOWER if PLAIN not in history.variants:
            return Reaction(ResendOnce(PLAIN), circuit)
        case AnswerAction.SEND_AGAIN if AGAIN not in history.variants:
            return Reaction(ResendOnce(AGAIN), circuit)
        case AnswerAction.RETURN | AnswerAction.SEND_AGAIN:
            return Reaction(RecordFailed(), circuit)
        case AnswerAction.FAIL | AnswerAction.LOWER | AnswerAction.SPLIT | AnswerAction.USED_UP:
            return Reaction(RecordFailed(), circuit, alarm)
        case AnswerAction.RENEW_TOKEN if RENEWED not in history.variants:
            return Reaction(ResendOnce(RENEWED))
        case AnswerAction.RENEW_TOKEN | AnswerAction.STOP_APP:
            told = answer.table.credentials_refused if answer.code == CREDENTIALS_REFUSED else alarm
            return Reaction(RetryLater(), CircuitChange.OPEN, told)
        case AnswerAction.RETRY | AnswerAction.SLOW_DOWN | AnswerAction.REPEAT:
            return Reaction(RetryLater(answer.retry_after_ms, is_unknown=action is AnswerAction.REPEAT))
        case _:
            assert_never(action)


Answer = TypeVar("Answer", bound=CodedAnswer)


@dataclass(frozen=True, slots=True)
class BatchAnswer(Generic[Answer]):
    """An answer to a request for many devices. `by_token`: those of devices that have another one than `others`."""

    answer: Answer
    by_token: Mapping[str, Answer] = field(default_factory=dict)
    others: Answer | None = None

    def of(self, token: str) -> Answer:
        """Return the answer for one of its devices."""
        return self.by_token.get(token, self.others or self.answer)
