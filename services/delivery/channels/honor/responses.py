"""The table of Honor's answers: what follows from each for the message, its address and its app.

Honor's list of codes is not public; those of Huawei's service, which it descends from, are judged by their beginning.
"""

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

ACCEPTED = "200"
EXPIRED, FAILED = "expireTokens", "failTokens"

CODES = {
    ACCEPTED: AnswerCode(AnswerAction.ACCEPT),
    EXPIRED: AnswerCode(AnswerAction.REMOVE),
    FAILED: AnswerCode(AnswerAction.SEND_AGAIN),
    **OWN_CODES,
}
"""The documented code, why addresses are not served, in Honor's words, and our own."""

_BY_BEGINNING = {
    "801": AnswerAction.FAIL,
    "802": AnswerAction.RENEW_TOKEN,
    "803": AnswerAction.STOP_APP,
    "81": AnswerAction.REPEAT,
    "401": AnswerAction.RENEW_TOKEN,
    "429": AnswerAction.SLOW_DOWN,
    "4": AnswerAction.FAIL,
    "5": AnswerAction.REPEAT,
}


class HonorAnswer(CodedAnswer):
    """Honor's answer. `code`: a result code, or why the address is not served."""

    __slots__ = ()
    table = AnswerTable(
        CODES,
        _BY_BEGINNING,
        "Honor refuses messages",
        "Honor does not accept the app's client ID and secret: set others with carillon app set APPKEY"
        " --honor-client-id ID --honor-client-secret FILE",
    )


class _Data(msgspec.Struct, rename="camel"):
    fail_tokens: list[str] = []
    expire_tokens: list[str] = []


class _Body(msgspec.Struct):
    code: int | str
    data: _Data | None = None


_bodies = msgspec.json.Decoder(_Body)
_MAX_CODE = 20


def parse_answer(status: int, retry_after: str, body: bytes, now_ms: int) -> BatchAnswer[HonorAnswer]:
    """Read an answer. `retry_after`: the header, "" for none."""
    wait_ms = retry_after_ms(retry_after, now_ms)
    try:
        found = _bodies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        why = "unreadable answer" if status == 200 else ""
        return BatchAnswer(HonorAnswer(status, why=why, retry_after_ms=wait_ms))
    answer = HonorAnswer(status, str(found.code)[:_MAX_CODE], retry_after_ms=wait_ms)
    if found.data is None or answer.code != ACCEPTED:
        return BatchAnswer(answer)
    failed = dict.fromkeys(found.data.fail_tokens, HonorAnswer(status, FAILED))
    return BatchAnswer(answer, failed | dict.fromkeys(found.data.expire_tokens, HonorAnswer(status, EXPIRED)))
