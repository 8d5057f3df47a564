"""What follows from each answer of FCM."""

import json
from typing import Any

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
from services.delivery.channels.fcm.responses import (
    ACCOUNT_REFUSED,
    HANDLINGS,
    RENEWED,
    UNKNOWN,
    FcmAnswer,
    label,
    parse_answer,
    react,
)

OPEN, CLOSE, NONE = CircuitChange.OPEN, CircuitChange.CLOSE, CircuitChange.NONE
NOW_MS = 1_800_000_000_000
FCM_ERROR = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


def google(status: int, canonical: str, code: str = "", field: str = "", text: str = "", wait: str = "") -> FcmAnswer:
    """Return Google's answer as the service reads it."""
    details: list[dict[str, Any]] = []
    if field:
        details.append({"@type": BAD_REQUEST, "fieldViolations": [{"field": field, "description": "wrong"}]})
    if code:
        details.append({"@type": FCM_ERROR, "errorCode": code})
    body = {"error": {"code": status, "message": text, "status": canonical, "details": details}}
    return parse_answer(status, wait, json.dumps(body).encode(), NOW_MS)


ROWS: list[tuple[FcmAnswer, Step, CircuitChange, bool]] = [
    (parse_answer(200, "", b'{"name":"projects/p/messages/0:1"}', NOW_MS), RecordSent(), CLOSE, False),
    (google(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "message.token"), RemoveAddress(), CLOSE, False),
    (
        google(400, "INVALID_ARGUMENT", text="The registration token is not a valid FCM registration token"),
        RemoveAddress(), CLOSE, False,
    ),
    (google(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "message.android.ttl"), RecordFailed(), CLOSE, True),
    (google(400, "INVALID_ARGUMENT"), RecordFailed(), CLOSE, True),
    (FcmAnswer(401, ACCOUNT_REFUSED), RetryLater(), OPEN, True),
    (google(401, "UNAUTHENTICATED"), ResendOnce(RENEWED), NONE, False),
    (google(401, "UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR"), RetryLater(), OPEN, True),
    (google(403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH"), RemoveAddress(), NONE, False),
    (google(403, "PERMISSION_DENIED"), RetryLater(), OPEN, True),
    (google(404, "NOT_FOUND", "UNREGISTERED"), RemoveAddress(), NONE, False),
    (google(404, "NOT_FOUND"), RetryLater(), OPEN, True),
    (google(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", wait="120"), RetryLater(120_000), NONE, False),
    (google(429, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"), RetryLater(60_000), NONE, False),
    (google(500, "INTERNAL", "INTERNAL"), RetryLater(is_unknown=True), NONE, False),
    (google(503, "UNAVAILABLE", "UNAVAILABLE", wait="5"), RetryLater(5_000), NONE, False),
    (google(503, "UNAVAILABLE"), RetryLater(), NONE, False),
    (FcmAnswer(UNKNOWN, "timeout"), RetryLater(is_unknown=True), NONE, False),
    (parse_answer(502, "", b"<html>", NOW_MS), RetryLater(is_unknown=True), NONE, False),
    (parse_answer(404, "", b"<html>", NOW_MS), RetryLater(), OPEN, True),
    (parse_answer(413, "", b"", NOW_MS), RecordFailed(), NONE, True),
    (parse_answer(302, "", b"", NOW_MS), RecordFailed(), NONE, True),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "step", "circuit", "is_alarm"), ROWS, ids=lambda value: str(value)[:70])
def test_the_first_answer(answer: FcmAnswer, step: Step, circuit: CircuitChange, is_alarm: bool) -> None:
    reaction = react(answer, RetryHistory())
    assert (reaction.step, reaction.circuit, bool(reaction.alarm)) == (step, circuit, is_alarm)


def test_every_documented_answer_has_a_row() -> None:
    assert set(HANDLINGS) <= {(answer.status, answer.code) for answer, *_ in ROWS}


def test_a_second_refusal_of_an_access_token_stops_the_app() -> None:
    reaction = react(google(401, "UNAUTHENTICATED"), RetryHistory(variants=frozenset({RENEWED})))
    assert (reaction.step, reaction.circuit) == (RetryLater(), OPEN)
    assert reaction.alarm


def test_what_is_read_of_answers() -> None:
    assert ROWS[0][0].name == "projects/p/messages/0:1"
    assert "message.android.ttl" in react(ROWS[3][0], RetryHistory()).alarm
    assert label(google(404, "NOT_FOUND", "UNREGISTERED")) == "404 UNREGISTERED"
    assert (label(google(404, "x" * 500)), label(FcmAnswer(UNKNOWN))) == ("404", "none")


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"[" * 100_000, b"null", b'{"error":null}', b'{"error":{"details":[{"@type":1}]}}',
     json.dumps({"error": {"details": [{"@type": BAD_REQUEST, "fieldViolations": "x"}]}}).encode()],
)  # fmt: skip
def test_bodies_that_say_nothing(body: bytes) -> None:
    assert parse_answer(400, "soon", body, NOW_MS) == FcmAnswer(400, "HTTP 400")


def test_a_date_is_a_wait_too() -> None:
    assert google(503, "UNAVAILABLE", wait="Fri, 15 Jan 2027 08:01:00 GMT").retry_after_ms == 60_000
