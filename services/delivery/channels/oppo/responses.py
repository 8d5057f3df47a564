"""The table of OPPO's answers: what follows from each for the message, its address and its app."""

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
INVALID_ID = "registration_id"
"""In the place of a code of a call of its own, 10000 to 20000, whose text names the address."""

REFUSED_TOKENS = frozenset((14, 15, 16, 17, 18, 19))
"""Codes that say that the key, the secret or the clock is wrong."""

CODES = {
    ACCEPTED: AnswerCode(AnswerAction.ACCEPT),
    **listed(AnswerAction.SLOW_DOWN, words("too fast"), "-2 13 55"),
    "-1": AnswerCode(AnswerAction.RETRY, words("temporary fault")),
    **listed(AnswerAction.RENEW_TOKEN, words("access token expired"), "11 29"),
    **listed(AnswerAction.RENEW_TOKEN, words("key, secret or clock refused"), "14 15 16 17 18 19"),
    **listed(AnswerAction.FAIL, words("wrong message"), "12 20 21 22 23 24 25 40 41"),
    **listed(AnswerAction.STOP_APP, words("app or right refused"), "26 27 28 30 59"),
    **listed(AnswerAction.RETURN, words("not sent"), "31 32"),
    "33": AnswerCode(AnswerAction.USED_UP, words("daily limit")),
    "67": AnswerCode(AnswerAction.LOWER, words("no right to the category")),
    INVALID_ID: AnswerCode(AnswerAction.REMOVE),
    **OWN_CODES,
}
"""Documented result codes, the refusal of an address, and our own."""


class OppoAnswer(CodedAnswer):
    """OPPO's answer to a message."""

    __slots__ = ()
    table = AnswerTable(
        CODES,
        UNLISTED,
        "OPPO refuses messages",
        "OPPO does not accept the app's key and master secret: set others with carillon app set APPKEY"
        " --oppo-app-key KEY --oppo-master-secret FILE",
    )


class _Body(msgspec.Struct):
    code: int
    message: str = ""


_bodies = msgspec.json.Decoder(_Body)


def parse_answer(status: int, retry_after: str, body: bytes, now_ms: int) -> BatchAnswer[OppoAnswer]:
    """Read an answer. `retry_after`: the header, "" for none."""
    wait_ms = retry_after_ms(retry_after, now_ms)
    try:
        found = _bodies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        why = "unreadable answer" if status == 200 else ""
        return BatchAnswer(OppoAnswer(status, why=why, retry_after_ms=wait_ms))
    is_invalid = 10_000 <= found.code <= 20_000 and "registration" in found.message.lower()
    return BatchAnswer(OppoAnswer(status, INVALID_ID if is_invalid else str(found.code), retry_after_ms=wait_ms))
