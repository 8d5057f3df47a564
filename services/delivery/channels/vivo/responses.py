"""The table of vivo's answers: what follows from each for the message, its address and its app."""

import msgspec

from services.delivery.channels import retry_after_ms
from services.delivery.channels.batches.answers import (
    OWN_CODES,
    UNLISTED,
    AnswerAction,
    AnswerCode,
    AnswerTable,
    BatchAnswer,
    CodedAnswer,
    listed,
)
from services.domain.channel_credentials.fields import words

ACCEPTED = "0"
REFUSED_TOKENS = frozenset((10_000, 10_094))

_PARAMETERS = " ".join(
    str(code)
    for code in (
        *(code for code in range(10_050, 10_070)),
        *(code for code in range(10_150, 10_155)),
        *(10_301, 10_305, 10_306, 10_352, 10_353, 10_471, 10_473, 11_000),
    )
)

CODES = {
    ACCEPTED: AnswerCode(AnswerAction.ACCEPT),
    "10000": AnswerCode(AnswerAction.RENEW_TOKEN, words("not authenticated")),
    "10094": AnswerCode(AnswerAction.RENEW_TOKEN, words("access token of another app")),
    **listed(AnswerAction.FAIL, words("wrong parameter"), _PARAMETERS),
    **listed(AnswerAction.LOWER, words("no right to the category"), "10096 10097"),
    "10302": AnswerCode(AnswerAction.REMOVE, words("invalid id")),
    **listed(AnswerAction.USED_UP, words("daily limit"), "10070 10073 10252 10254"),
    "10071": AnswerCode(AnswerAction.RETRY, words("outside the hours")),
    "10072": AnswerCode(AnswerAction.SLOW_DOWN, words("too fast")),
    "status 1": AnswerCode(AnswerAction.REMOVE, words("unknown id")),
    "status 2": AnswerCode(AnswerAction.REMOVE, words("app not installed")),
    "status 3": AnswerCode(AnswerAction.RETURN, words("device not seen for 90 days")),
    "status 4": AnswerCode(AnswerAction.FAIL, words("no test user")),
    **OWN_CODES,
}
"""Documented result codes, the statuses of invalid users, and our own."""


class VivoAnswer(CodedAnswer):
    """vivo's answer to a message. `code`: the result, or the status of an invalid user."""

    __slots__ = ()
    table = AnswerTable(
        CODES,
        UNLISTED,
        "vivo refuses messages",
        "vivo does not accept the app's key and secret: set others with carillon app set APPKEY"
        " --vivo-app-key KEY --vivo-app-secret FILE",
    )


class _InvalidUser(msgspec.Struct):
    status: int


class _Body(msgspec.Struct, rename="camel"):
    result: int
    invalid_user: _InvalidUser | None = None


_bodies = msgspec.json.Decoder(_Body)


def parse_answer(status: int, retry_after: str, body: bytes, now_ms: int) -> BatchAnswer[VivoAnswer]:
    """Read an answer. `retry_after`: the header, "" for none."""
    wait_ms = retry_after_ms(retry_after, now_ms)
    try:
        found = _bodies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        why = "unreadable answer" if status == 200 else ""
        return BatchAnswer(VivoAnswer(status, why=why, retry_after_ms=wait_ms))
    invalid = f"status {found.invalid_user.status}" if found.invalid_user else ""
    return BatchAnswer(VivoAnswer(status, invalid if invalid in CODES else str(found.result), retry_after_ms=wait_ms))
