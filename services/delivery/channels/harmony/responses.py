"""The table of Huawei's answers to HarmonyOS requests: what follows from each for the message, its address and its app.

An answer about some or all addresses says why for each, and only that says whether the address is to blame.
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
from services.delivery.channels.huawei import ACCEPTED, ALL_INVALID, SOME_REFUSED
from services.domain.channel_credentials.fields import words

REASONS = {
    "tokenFormatError": AnswerCode(AnswerAction.REMOVE),
    "tokenPlatformNotSupport": AnswerCode(AnswerAction.REMOVE),
    "noRight": AnswerCode(AnswerAction.REMOVE),
    "countryNotSupport": AnswerCode(AnswerAction.RETURN),
    "noPushTypeRight": AnswerCode(AnswerAction.STOP_APP),
    "appinfoError": AnswerCode(AnswerAction.STOP_APP),
    "differentImgVerifyPolicy": AnswerCode(AnswerAction.STOP_APP),
}
"""Why an address is not served, in Huawei's words."""

CODES = {
    **REASONS,
    ACCEPTED: AnswerCode(AnswerAction.ACCEPT),
    SOME_REFUSED: AnswerCode(AnswerAction.FAIL, words("some tokens refused")),
    "80100001": AnswerCode(AnswerAction.FAIL, words("wrong parameter")),
    "80100003": AnswerCode(AnswerAction.FAIL, words("wrong message")),
    "80100004": AnswerCode(AnswerAction.FAIL, words("wrong time to live")),
    "80100022": AnswerCode(AnswerAction.FAIL, words("image not checked")),
    "80200001": AnswerCode(AnswerAction.RENEW_TOKEN, words("not authenticated")),
    "80200005": AnswerCode(AnswerAction.RENEW_TOKEN, words("access token expired")),
    "80300002": AnswerCode(AnswerAction.STOP_APP, words("service off or wrong project")),
    ALL_INVALID: AnswerCode(AnswerAction.FAIL, words("all tokens refused")),
    "80300008": AnswerCode(AnswerAction.FAIL, words("message too large")),
    "80300010": AnswerCode(AnswerAction.SPLIT, words("number of tokens")),
    "80300029": AnswerCode(AnswerAction.RETRY, words("test messages too fast")),
    "80300030": AnswerCode(AnswerAction.SPLIT, words("number of test tokens")),
    "80300036": AnswerCode(AnswerAction.STOP_APP, words("access token valid for too long")),
    "80300037": AnswerCode(AnswerAction.STOP_APP, words("penalty")),
    "81000001": AnswerCode(AnswerAction.REPEAT, words("internal error")),
    **OWN_CODES,
}
"""Documented result codes, why addresses are refused, and our own."""

_PENALTIES = ("disableSend", "atomicUnable", "noRightToSendThisLive")
"""Beginnings of further reasons, all of which are about the app."""

_BY_BEGINNING = {
    **dict.fromkeys(_PENALTIES, AnswerAction.STOP_APP),
    "801": AnswerAction.FAIL,
    "802": AnswerAction.RENEW_TOKEN,
    "803": AnswerAction.STOP_APP,
    "810": AnswerAction.REPEAT,
}


class HarmonyAnswer(CodedAnswer):
    """Huawei's answer to a HarmonyOS message. `code`: a result code, or why the address is refused."""

    __slots__ = ()
    table = AnswerTable(
        CODES,
        _BY_BEGINNING,
        "Huawei refuses HarmonyOS messages",
        "the app's service account for HarmonyOS signs no requests: set another with carillon app set APPKEY"
        " --harmony-service-account FILE",
    )


class _Body(msgspec.Struct):
    code: str = ""
    msg: str = ""


class _Partly(msgspec.Struct, rename="camel"):
    illegal_tokens: dict[str, list[str]]


_bodies = msgspec.json.Decoder(_Body)
_partly = msgspec.json.Decoder(_Partly)
_MAX_CODE = 40


def parse_answer(status: int, retry_after: str, body: bytes, now_ms: int) -> BatchAnswer[HarmonyAnswer]:
    """Read an answer. `retry_after`: the header, "" for none."""
    wait_ms = retry_after_ms(retry_after, now_ms)
    try:
        found = _bodies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _unreadable(status, wait_ms)
    answer = HarmonyAnswer(status, found.code[:_MAX_CODE], retry_after_ms=wait_ms)
    if found.code not in (SOME_REFUSED, ALL_INVALID):
        return BatchAnswer(answer)
    try:
        reasons = _partly.decode(found.msg).illegal_tokens
    except (msgspec.DecodeError, RecursionError):
        return BatchAnswer(answer) if found.code == ALL_INVALID else _unreadable(status, wait_ms)
    by_token = {token: HarmonyAnswer(status, _known(why) or found.code) for why in reasons for token in reasons[why]}
    return BatchAnswer(answer, by_token, HarmonyAnswer(status, ACCEPTED) if found.code == SOME_REFUSED else None)


def _known(why: str) -> str:
    """Return why an address is refused; "" for a reason that is not documented, and may say nothing of the address."""
    is_known = why in REASONS or why.startswith(_PENALTIES)
    return why[:_MAX_CODE] if is_known else ""


def _unreadable(status: int, wait_ms: int) -> BatchAnswer[HarmonyAnswer]:
    return BatchAnswer(HarmonyAnswer(status, why="unreadable answer" if status == 200 else "", retry_after_ms=wait_ms))
