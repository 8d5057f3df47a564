"""What follows from each answer of HMS."""

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
    PLAIN,
    RENEWED,
    UNKNOWN,
    react,
)
from services.delivery.channels.hms.responses import CODES, HmsAnswer, parse_answer
from services.delivery.channels.huawei import ACCEPTED, SOME_REFUSED

OPEN, CLOSE, NONE = CircuitChange.OPEN, CircuitChange.CLOSE, CircuitChange.NONE
NOW_MS = 1_800_000_000_000


def huawei(code: str, status: int = 200, msg: str = "", wait: str = "") -> HmsAnswer:
    """Return Huawei's answer as the service reads it."""
    body = {"code": code, "msg": msg, "requestId": "1"}
    return parse_answer(status, wait, json.dumps(body).encode(), NOW_MS).answer


ROWS: list[tuple[HmsAnswer, Step, CircuitChange, bool]] = [
    (huawei("80000000"), RecordSent(), CLOSE, False),
    (huawei("80100000", msg='{"illegal_tokens":["a"]}'), RemoveAddress(), CLOSE, False),
    (huawei("80100001", 400), RecordFailed(), CLOSE, True),
    (huawei("80100002", 400), RecordFailed(), CLOSE, True),
    (huawei("80100003", 400), RecordFailed(), CLOSE, True),
    (huawei("80100004", 400), RecordFailed(), CLOSE, True),
    (huawei("80100013", 400), RecordFailed(), CLOSE, True),
    (huawei("80100016", 400), RecordFailed(), CLOSE, True),
    (huawei("80100017", 400), RecordFailed(), CLOSE, True),
    (huawei("80100018", 400), RecordFailed(), CLOSE, True),
    (huawei("80200001", 401), ResendOnce(RENEWED), NONE, False),
    (huawei("80200003", 401), ResendOnce(RENEWED), NONE, False),
    (huawei("80300002", 400), RetryLater(), OPEN, True),
    (huawei("80300007", 400), RemoveAddress(), CLOSE, False),
    (huawei("80300008", 400), RecordFailed(), CLOSE, True),
    (huawei("80300010", 400), RecordFailed(), CLOSE, True),
    (huawei("80300011", 400), ResendOnce(PLAIN), CLOSE, False),
    (huawei("80300013", 400), RecordFailed(), CLOSE, True),
    (huawei("80600003", 500), RetryLater(), NONE, False),
    (huawei("81000001", 500), RetryLater(is_unknown=True), NONE, False),
    (HmsAnswer(401, CREDENTIALS_REFUSED), RetryLater(), OPEN, True),
    (HmsAnswer(503, NO_ACCESS_TOKEN), RetryLater(), NONE, False),
    (HmsAnswer(200, DAILY_CAP), RecordFailed(), CLOSE, False),
    (huawei("80199999", 400), RecordFailed(), CLOSE, True),
    (huawei("80299999", 400), ResendOnce(RENEWED), NONE, False),
    (huawei("80399999", 400), RetryLater(), OPEN, True),
    (huawei("81099999", 500), RetryLater(is_unknown=True), NONE, False),
    (huawei("99", 400), RecordFailed(), CLOSE, True),
    (HmsAnswer(UNKNOWN, why="no answer within 10 s"), RetryLater(is_unknown=True), NONE, False),
    (parse_answer(200, "", b"<html>", NOW_MS).answer, RetryLater(is_unknown=True), NONE, False),
    (huawei("80100000", msg="?"), RetryLater(is_unknown=True), NONE, False),
    (parse_answer(401, "", b"", NOW_MS).answer, ResendOnce(RENEWED), NONE, False),
    (parse_answer(403, "", b"", NOW_MS).answer, RetryLater(), OPEN, True),
    (parse_answer(404, "", b"", NOW_MS).answer, RetryLater(), OPEN, True),
    (parse_answer(429, "7", b"", NOW_MS).answer, RetryLater(7_000), NONE, False),
    (parse_answer(503, "", b"", NOW_MS).answer, RetryLater(), NONE, False),
    (parse_answer(502, "", b"", NOW_MS).answer, RetryLater(is_unknown=True), NONE, False),
    (parse_answer(400, "", b"", NOW_MS).answer, RecordFailed(), NONE, True),
    (parse_answer(302, "", b"", NOW_MS).answer, RecordFailed(), NONE, True),
]


@pytest.mark.parametrize(("answer", "step", "circuit", "is_alarm"), ROWS, ids=lambda value: str(value)[:70])
def test_the_first_answer(answer: HmsAnswer, step: Step, circuit: CircuitChange, is_alarm: bool) -> None:
    reaction = react(answer, RetryHistory())
    assert (reaction.step, reaction.circuit, bool(reaction.alarm)) == (step, circuit, is_alarm)


def test_every_documented_code_has_a_row() -> None:
    assert set(CODES) <= {answer.code for answer, *_ in ROWS}


def test_a_second_refusal_of_an_access_token_stops_the_app() -> None:
    reaction = react(huawei("80200001", 401), RetryHistory(variants=frozenset({RENEWED})))
    assert (reaction.step, reaction.circuit) == (RetryLater(), OPEN)
    assert reaction.alarm


def test_normal_importance_is_tried_once() -> None:
    reaction = react(huawei("80300011", 400), RetryHistory(variants=frozenset({PLAIN})))
    assert (reaction.step, reaction.alarm) == (
        RecordFailed(), "Huawei refuses HMS messages: 80300011 no right to high importance",
    )  # fmt: skip


def test_an_answer_about_some_tokens_is_one_for_each() -> None:
    msg = json.dumps({"success": 1, "failure": 1, "illegal_tokens": ["a"]})
    found = parse_answer(200, "", json.dumps({"code": SOME_REFUSED, "msg": msg}).encode(), NOW_MS)
    assert (found.of("a").code, found.of("b").code) == (SOME_REFUSED, ACCEPTED)
    assert (found.of("a").reason, found.of("b").reason) == ("80100000 invalid token", "")


def test_reasons_and_labels_quote_nothing_of_huawei() -> None:
    told = huawei("80100003", 400, msg="Illegal payload: my secret")
    assert (told.reason, told.label) == ("80100003 wrong message", "80100003 wrong message")
    assert (huawei("x" * 500, 400).label, HmsAnswer(UNKNOWN).label, huawei(ACCEPTED).label) == (
        "400", "none", ACCEPTED,
    )  # fmt: skip
    assert len(huawei("x" * 500, 400).reason) == 20


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b"null", b'{"code":1}', b'{"code":"80100000","msg":"[]"}'])
def test_bodies_that_say_nothing(body: bytes) -> None:
    assert parse_answer(500, "soon", body, NOW_MS).answer == HmsAnswer(500)
