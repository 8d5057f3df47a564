"""The table of Huawei's answers to HMS requests: what follows from each for the message, its address and its app."""

import msgspec

from services.delivery.channels import retry_after_ms
from services.delivery.channels.batches.answers import (
    OWN_CODES,
    AnswerAction,
    AnswerCode,
    AnswerTable,
    BatchAnswer,
    CodedAnswer,
)
from services.delivery.channels.huawei import ACCEPTED, ALL_INVALID, SOME_REFUSED
from services.domain.channel_credentials.fields import words

CODES = {
    ACCEPTED: AnswerCode(AnswerAction.ACCEPT),
    SOME_REFUSED: AnswerCode(AnswerAction.REMOVE, words("invalid token")),
    "80100001": AnswerCode(AnswerAction.FAIL, words("wrong parameter")),
    "80100002": AnswerCode(AnswerAction.SPLIT, words("one token only")),
    "80100003": AnswerCode(AnswerAction.FAIL, words("wrong message")),
    "80100004": AnswerCode(AnswerAction.FAIL, words("wrong time to live")),
    "80100013": AnswerCode(AnswerAction.FAIL, words("wrong collapse key")),
    "80100016": AnswerCode(AnswerAction.FAIL, words("sensitive words")),
    "80100017": AnswerCode(AnswerAction.FAIL, words("too many topic messages")),
    "80100018": AnswerCode(AnswerAction.FAIL, words("refused by review")),
    "80200001": AnswerCode(AnswerAction.RENEW_TOKEN, words("not authenticated")),
    "80200003": AnswerCode(AnswerAction.RENEW_TOKEN, words("access token expired")),
    "80300002": AnswerCode(AnswerAction.STOP_APP, words("no permission")),
    ALL_INVALID: AnswerCode(AnswerAction.REMOVE, words("all tokens invalid")),
    "80300008": AnswerCode(AnswerAction.FAIL, words("message too large")),
    "80300010": AnswerCode(AnswerAction.SPLIT, words("number of tokens")),
    "80300011": AnswerCode(AnswerAction.LOWER, words("no right to high importance")),
    "80300013": AnswerCode(AnswerAction.FAIL, words("wrong receipt URL")),
    "80600003": AnswerCode(AnswerAction.RETRY, words("token check unavailable")),
    "81000001": AnswerCode(AnswerAction.REPEAT, words("internal error")),
    **OWN_CODES,
}
"""Documented result codes, and our own."""

_BY_BEGINNING = {
    "801": AnswerAction.FAIL,
    "802": AnswerAction.RENEW_TOKEN,
    "803": AnswerAction.STOP_APP,
    "806": AnswerAction.RETRY,
    "810": AnswerAction.REPEAT,
}


class HmsAnswer(CodedAnswer):
    """Huawei's answer to an HMS message."""

    __slots__ = ()
    table = AnswerTable(
        CODES,
        _BY_BEGINNING,
        "Huawei refuses HMS messages",
        "Huawei does not accept the app's client ID and secret: set others with carillon app set APPKEY"
        " --hms-client-id ID --hms-client-secret FILE",
    )


class _Body(msgspec.Struct):
    code: str = ""
    msg: str = ""


class _Partly(msgspec.Struct):
    illegal_tokens: list[str]


_bodies = msgspec.json.Decoder(_Body)
_partly = msgspec.json.Decoder(_Partly)
_MAX_CODE = 20


def parse_answer(status: int, retry_after: str, body: bytes, now_ms: int) -> BatchAnswer[HmsAnswer]:
    """Read an answer. `retry_after`: the header, "" for none."""
    wait_ms = retry_after_ms(retry_after, now_ms)
    try:
        found = _bodies.decode(body)
        invalid = _partly.decode(found.msg).illegal_tokens if found.code == SOME_REFUSED else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        why = "unreadable answer" if status == 200 else ""
        return BatchAnswer(HmsAnswer(status, why=why, retry_after_ms=wait_ms))
    answer = HmsAnswer(status, found.code[:_MAX_CODE], retry_after_ms=wait_ms)
    if found.code != SOME_REFUSED:
        return BatchAnswer(answer)
    return BatchAnswer(answer, dict.fromkeys(invalid, answer), HmsAnswer(status, ACCEPTED))
