"""What follows from each answer of a push service."""

import json
from collections.abc import Iterable

import pytest

from services.delivery.channels import (
    CircuitChange,
    DelayDevice,
    Reaction,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
    Step,
)
from services.delivery.channels.webpush.responses import (
    ENDPOINT_REFUSED,
    HANDLINGS,
    LOCAL,
    NO_CONNECTION,
    RENEWED,
    SMALL,
    UNKNOWN,
    Refusals,
    WebPushAnswer,
    label,
    parse_answer,
    react,
)

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
JUDGED = Reaction(RetryLater(7))


def mozilla(status: int, errno: int) -> WebPushAnswer:
    body = json.dumps({"code": status, "errno": errno, "error": "Error", "message": "Message"})
    return parse_answer(status, {}, body.encode(), NOW_MS)


def apple(status: int, reason: str) -> WebPushAnswer:
    return parse_answer(status, {}, json.dumps({"reason": reason}).encode(), NOW_MS)


def ntfy(status: int, code: int) -> WebPushAnswer:
    return parse_answer(status, {}, json.dumps({"code": code, "http": status, "error": "limit"}).encode(), NOW_MS)


def plain(status: int, body: str = "", **headers: str) -> WebPushAnswer:
    return parse_answer(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, body.encode(), NOW_MS
    )


ROWS: list[tuple[WebPushAnswer, Step, bool]] = [
    (plain(201), RecordSent(), False),
    (plain(200, '{"id":"ntfy\'s"}'), RecordSent(), False),
    (plain(202), RecordSent(), False),
    (plain(204), RecordSent(), False),
    *((mozilla(400, errno), RecordFailed(), True) for errno in (101, 108, 110, 111, 112, 113, 114, 999)),
    (plain(400, "<html>UnauthorizedRegistration</html>"), RemoveAddress(), False),
    (plain(400), RecordFailed(), True),
    (mozilla(401, 109), ResendOnce(RENEWED), False),
    (plain(401), ResendOnce(RENEWED), False),
    (apple(403, "BadJwtToken"), ResendOnce(RENEWED), False),
    (plain(403, "the key in the authorization header does not correspond"), ResendOnce(RENEWED), False),
    (mozilla(404, 102), RemoveAddress(), False),
    (plain(404), RemoveAddress(), False),
    *((mozilla(410, errno), RemoveAddress(), False) for errno in (103, 105, 106)),
    (plain(410), RemoveAddress(), False),
    (mozilla(413, 104), ResendOnce(SMALL), False),
    (plain(413), ResendOnce(SMALL), False),
    (plain(429, retry_after="90"), DelayDevice(90_000), False),
    (ntfy(429, 42901), DelayDevice(), False),
    (mozilla(503, 201), RetryLater(), False),
    (plain(503, retry_after="Fri, 15 Jan 2027 08:01:00 GMT"), RetryLater(60_000), False),
    (mozilla(503, 202), RetryLater(), False),
    (ntfy(507, 50701), RetryLater(), False),
    *((plain(status), RetryLater(is_unknown=True), False) for status in (408, 500, 502, 504, 599)),
    (WebPushAnswer(UNKNOWN, "timeout"), RetryLater(is_unknown=True), False),
    *((plain(status, location="https://example.org"), RecordFailed(), True) for status in (301, 302, 307, 308)),
    *((plain(status), RecordFailed(), True) for status in (405, 411, 415, 426, 451)),
    (WebPushAnswer(LOCAL, ENDPOINT_REFUSED), RecordFailed(), True),
    (WebPushAnswer(LOCAL, NO_CONNECTION), RetryLater(), False),
]


@pytest.mark.parametrize(("answer", "step", "is_alarm"), ROWS, ids=lambda value: str(value)[:60])
def test_the_first_answer(answer: WebPushAnswer, step: Step, is_alarm: bool) -> None:
    reaction = react(answer, RetryHistory(), lambda: JUDGED)
    assert reaction.step == step
    assert bool(reaction.alarm) is is_alarm
    assert reaction.circuit is (CircuitChange.CLOSE if step == RecordSent() else CircuitChange.NONE)


def test_every_documented_answer_has_a_row() -> None:
    rows = {(answer.status, answer.name) for answer, *_ in ROWS}
    assert set(HANDLINGS) <= rows


def test_a_second_refusal() -> None:
    renewed = RetryHistory(variants=frozenset({RENEWED}))
    assert react(mozilla(401, 109), renewed, lambda: JUDGED) is JUDGED
    small = RetryHistory(variants=frozenset({SMALL}))
    assert react(plain(413), small, lambda: JUDGED).step == RecordFailed()
    assert react(mozilla(401, 109), small, lambda: JUDGED).step == ResendOnce(RENEWED)


def test_labels_are_few() -> None:
    assert label(mozilla(404, 102)) == "404 errno 102"
    assert label(apple(403, "Anything" * 100)) == label(plain(403)) == "403"
    assert {label(plain(201)), label(WebPushAnswer(UNKNOWN, "x")), label(WebPushAnswer(LOCAL))} == {
        "201",
        "none",
        "local",
    }


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        ("", 0),
        ("1", 1_000),
        ("99999999", 86_400_000),
        ("-5", 0),
        ("1e9", 0),
        ("9" * 5_000, 0),
        ("soon", 0),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
        ("Fri, 15 Jan 2037 07:00:00 GMT", 86_400_000),
        ("Fri, 99 Jan 2037 07:00:00 GMT", 0),
    ],
)
def test_when_a_push_service_wants_to_be_asked_again(value: str, wait_ms: int) -> None:
    assert parse_answer(429, {"retry-after": value}, b"", NOW_MS).retry_after_ms == wait_ms


def test_the_lifetime_that_a_push_service_grants() -> None:
    assert parse_answer(201, {"ttl": "2592000"}, b"", NOW_MS).ttl_s == 2_592_000
    assert parse_answer(201, {"ttl": "-1"}, b"", NOW_MS).ttl_s is None


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b'{"errno":"x"}', b"{}", b"null", b'{"reason":""}'])
def test_bodies_that_say_nothing(body: bytes) -> None:
    assert parse_answer(404, {}, body, NOW_MS).name == "HTTP 404"


def refusals_of(refusals: Refusals, appkey: str, endpoints: Iterable[str], now_ms: int) -> list[Reaction]:
    return [refusals.judge(appkey, endpoint, now_ms) for endpoint in endpoints]


def test_a_subscription_is_removed_after_three_refusals_over_a_day() -> None:
    refusals = Refusals()
    for hours in (0, 1, 12, 23):
        (reaction,) = refusals_of(refusals, "1", ["a"], NOW_MS + hours * HOUR_MS)
        assert reaction == Reaction(RetryLater(HOUR_MS))
    assert refusals.judge("1", "b", NOW_MS + 24 * HOUR_MS).step == RetryLater(HOUR_MS)
    assert refusals.judge("1", "a", NOW_MS + 24 * HOUR_MS).step == RemoveAddress()


def test_an_accepted_message_ends_the_count_of_refusals() -> None:
    refusals = Refusals()
    refusals_of(refusals, "1", "aa", NOW_MS)
    refusals.accepted("1", "a")
    assert refusals.judge("1", "a", NOW_MS + 25 * HOUR_MS).step == RetryLater(HOUR_MS)


def test_an_app_whose_every_subscription_is_refused_is_stopped_and_keeps_them() -> None:
    refusals = Refusals()
    reactions = refusals_of(refusals, "1", map(str, range(25)), NOW_MS)
    assert [reaction.circuit for reaction in reactions] == [CircuitChange.NONE] * 19 + [CircuitChange.OPEN] * 6
    assert reactions[-1].alarm
    assert refusals.judge("1", "0", NOW_MS + 48 * HOUR_MS).step == RetryLater()
    assert refusals.judge("2", "0", NOW_MS).circuit is CircuitChange.NONE
    refusals.accepted("1", "0")
    assert refusals.judge("1", "1", NOW_MS).circuit is CircuitChange.NONE
