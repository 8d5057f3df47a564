"""What follows from each answer to a HarmonyOS message."""

import json

import pytest

from services.delivery.channels import (
    CircuitChange,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
    Step,
)
from services.delivery.channels.batches.answers import (
    CREDENTIALS_REFUSED,
    DAILY_CAP,
    NO_ACCESS_TOKEN,
    RENEWED,
    UNKNOWN,
    react,
)
from services.delivery.channels.harmony.responses import CODES, HarmonyAnswer, parse_answer
from services.delivery.channels.huawei import ALL_INVALID, SOME_REFUSED

OPEN, CLOSE, NONE = CircuitChange.OPEN, CircuitChange.CLOSE, CircuitChange.NONE
NOW_MS = 1_800_000_000_000


def huawei(code: str, status: int = 200, msg: str = "", token: str = "a") -> HarmonyAnswer:
    """Return Huawei's answer for a device as the service reads it."""
    body = {"code": code, "msg": msg, "requestId": "1"}
    return parse_answer(status, "", json.dumps(body).encode(), NOW_MS).of(token)


def refused(why: str, code: str = SOME_REFUSED) -> HarmonyAnswer:
    """Return the answer for a device whose address is refused for this reason."""
    msg = {"success": 1, "failure": 1, "illegalTokens": {why: ["a"]}}
    return huawei(code, 200 if code == SOME_REFUSED else 400, json.dumps(msg))


ROWS: list[tuple[HarmonyAnswer, Step, CircuitChange, bool]] = [
    (huawei("80000000"), RecordSent(), CLOSE, False),
    (refused("tokenFormatError"), RemoveAddress(), CLOSE, False),
    (refused("tokenPlatformNotSupport"), RemoveAddress(), CLOSE, False),
    (refused("noRight"), RemoveAddress(), CLOSE, False),
    (refused("noRight", ALL_INVALID), RemoveAddress(), CLOSE, False),
    (refused("countryNotSupport"), RecordFailed(), CLOSE, False),
    (refused("noPushTypeRight"), RetryLater(), OPEN, True),
    (refused("appinfoError"), RetryLater(), OPEN, True),
    (refused("differentImgVerifyPolicy"), RetryLater(), OPEN, True),
    (refused("disableSendMarketingPenalty"), RetryLater(), OPEN, True),
    (refused("atomicUnableToPush"), RetryLater(), OPEN, True),
    (refused("noRightToSendThisLiveView", ALL_INVALID), RetryLater(), OPEN, True),
    (refused("somethingNew"), RecordFailed(), CLOSE, True),
    (refused("somethingNew", ALL_INVALID), RecordFailed(), CLOSE, True),
    (huawei(SOME_REFUSED, msg="?"), RetryLater(is_unknown=True), NONE, False),
    (huawei(ALL_INVALID, 400, "all the tokens are invalid"), RecordFailed(), CLOSE, True),
    (huawei("80100001", 400), RecordFailed(), CLOSE, True),
    (huawei("80100003", 400), RecordFailed(), CLOSE, True),
    (huawei("80100004", 400), RecordFailed(), CLOSE, True),
    (huawei("80100022", 400), RecordFailed(), CLOSE, True),
    (huawei("80200001", 401), ResendOnce(RENEWED), NONE, False),
    (huawei("80200005", 401), ResendOnce(RENEWED), NONE, False),
    (huawei("80300002", 400), RetryLater(), OPEN, True),
    (huawei("80300008", 400), RecordFailed(), CLOSE, True),
    (huawei("80300010", 400), RecordFailed(), CLOSE, True),
    (huawei("80300029", 400), RetryLater(), NONE, False),
    (huawei("80300030", 400), RecordFailed(), CLOSE, True),
    (huawei("80300036", 400), RetryLater(), OPEN, True),
    (huawei("80300037", 400), RetryLater(), OPEN, True),
    (huawei("81000001", 500), RetryLater(is_unknown=True), NONE, False),
    (HarmonyAnswer(401, CREDENTIALS_REFUSED), RetryLater(), OPEN, True),
    (HarmonyAnswer(503, NO_ACCESS_TOKEN), RetryLater(), NONE, False),
    (HarmonyAnswer(200, DAILY_CAP), RecordFailed(), CLOSE, False),
    (HarmonyAnswer(UNKNOWN, why="no answer within 10 s"), RetryLater(is_unknown=True), NONE, False),
    (huawei("80199999", 400), RecordFailed(), CLOSE, True),
    (huawei("80299999", 400), ResendOnce(RENEWED), NONE, False),
    (huawei("80399999", 400), RetryLater(), OPEN, True),
    (parse_answer(200, "", b"<html>", NOW_MS).answer, RetryLater(is_unknown=True), NONE, False),
    (parse_answer(401, "", b"", NOW_MS).answer, ResendOnce(RENEWED), NONE, False),
    (parse_answer(404, "", b"", NOW_MS).answer, RetryLater(), OPEN, True),
    (parse_answer(503, "7", b"", NOW_MS).answer, RetryLater(7_000), NONE, False),
    (parse_answer(502, "", b"", NOW_MS).answer, RetryLater(is_unknown=True), NONE, False),
]


@pytest.mark.parametrize(("answer", "step", "circuit", "is_alarm"), ROWS, ids=lambda value: str(value)[:70])
def test_the_first_answer(answer: HarmonyAnswer, step: Step, circuit: CircuitChange, is_alarm: bool) -> None:
    reaction = react(answer, RetryHistory())
    assert (reaction.step, reaction.circuit, bool(reaction.alarm)) == (step, circuit, is_alarm)


def test_every_documented_code_and_reason_has_a_row() -> None:
    assert set(CODES) <= {answer.code for answer, *_ in ROWS}


def test_a_second_refusal_of_a_signature_stops_the_app() -> None:
    reaction = react(huawei("80200001", 401), RetryHistory(variants=frozenset({RENEWED})))
    assert (reaction.step, reaction.circuit) == (RetryLater(), OPEN)
    assert reaction.alarm


def test_addresses_that_are_not_refused_have_their_message() -> None:
    msg = json.dumps({"success": 1, "failure": 1, "illegalTokens": {"noRight": ["b"]}})
    assert huawei(SOME_REFUSED, msg=msg).code == "80000000"
    assert huawei(ALL_INVALID, 400, msg).code == ALL_INVALID


def test_reasons_and_labels_quote_nothing_of_huawei() -> None:
    told = huawei("80100003", 400, msg="Illegal payload: my secret")
    assert (told.reason, told.label) == ("80100003 wrong message", "80100003 wrong message")
    assert (refused("noRight").reason, refused("my secret").reason) == ("noRight", "80100000 some tokens refused")
    assert (huawei("x" * 500, 400).label, len(huawei("x" * 500, 400).reason)) == ("400", 40)


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b"null", b'{"code":1}', b'{"code":"80100000","msg":"[]"}'])
def test_bodies_that_say_nothing(body: bytes) -> None:
    assert parse_answer(500, "soon", body, NOW_MS).answer == HarmonyAnswer(500)
