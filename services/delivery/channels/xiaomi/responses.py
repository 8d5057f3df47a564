"""The table of Xiaomi's answers: what follows from each for the message and its app.

Xiaomi does not say which addresses of a request are invalid: its receipts do.
"""

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

CODES = {
    ACCEPTED: AnswerCode(AnswerAction.ACCEPT),
    **listed(AnswerAction.RETRY, words("temporary fault"), "-1 1 10001 10002 10003 10010 10011 20607 65029"),
    **listed(
        AnswerAction.FAIL,
        words("wrong message"),
        "10008 10012 10016 10017 10018 65009 65011 65014 65015 65036 65037 65038 22102",
    ),
    **listed(AnswerAction.SLOW_DOWN, words("too fast"), "10022 10023 10024 10027 10028"),
    **listed(AnswerAction.USED_UP, words("daily limit"), "10034 200001"),
    **listed(
        AnswerAction.STOP_APP,
        words("app or secret refused"),
        "10004 10005 10013 10014 10026 10031 10036 21301 21302 21303 21305 22000 22001 22006 22007 22022 26006",
    ),
    "27001": AnswerCode(AnswerAction.STOP_APP, words("wrong notification channel")),
    **listed(AnswerAction.RETURN, words("device not reached"), "10029 65003"),
    "20301": AnswerCode(AnswerAction.SEND_AGAIN, words("not sent")),
    **OWN_CODES,
}
"""Documented result codes, and our own."""


class XiaomiAnswer(CodedAnswer):
    """Xiaomi's answer to a request."""

    __slots__ = ()
    table = AnswerTable(
        CODES,
        UNLISTED,
        "Xiaomi refuses messages",
        "Xiaomi does not accept the app's secret: set another with carillon app set APPKEY --xiaomi-app-secret FILE",
    )


class _Body(msgspec.Struct):
    code: int


_bodies = msgspec.json.Decoder(_Body)


def parse_answer(status: int, retry_after: str, body: bytes, now_ms: int) -> BatchAnswer[XiaomiAnswer]:
    """Read an answer. `retry_after`: the header, "" for none."""
    wait_ms = retry_after_ms(retry_after, now_ms)
    try:
        code = str(_bodies.decode(body).code)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        why = "unreadable answer" if status == 200 else ""
        return BatchAnswer(XiaomiAnswer(status, why=why, retry_after_ms=wait_ms))
    return BatchAnswer(XiaomiAnswer(status, code, retry_after_ms=wait_ms))
