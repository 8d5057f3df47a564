"""What follows from each of Apple's responses."""

import pytest

from services.apns_simulator.script import APPLE_REASONS
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
from services.delivery.channels.apns.request import UNKNOWN, ApnsResult
from services.delivery.channels.apns.responses import RENEWED, SANDBOX, react

NONE, OPEN, CLOSE = CircuitChange.NONE, CircuitChange.OPEN, CircuitChange.CLOSE
RETRY = RetryLater()
SUSPECT = RemoveAddress(registered_before_ms=12345)
"""The step that the test chooses for a token that Apple calls bad."""

DOCUMENTED: list[tuple[int, str, Step, CircuitChange, bool]] = [
    (400, "BadCollapseId", RecordFailed(), CLOSE, True),
    (400, "BadDeviceToken", SUSPECT, CLOSE, False),
    (400, "BadExpirationDate", RecordFailed(), CLOSE, True),
    (400, "BadMessageId", RecordFailed(), CLOSE, True),
    (400, "BadPriority", RecordFailed(), CLOSE, True),
    (400, "BadTopic", RecordFailed(), CLOSE, True),
    (400, "DeviceTokenNotForTopic", RecordFailed(), CLOSE, True),
    (400, "DuplicateHeaders", RecordFailed(), CLOSE, True),
    (400, "IdleTimeout", RETRY, CLOSE, False),
    (400, "InvalidPushType", RecordFailed(), CLOSE, True),
    (400, "MissingDeviceToken", RecordFailed(), CLOSE, True),
    (400, "MissingTopic", RecordFailed(), CLOSE, True),
    (400, "PayloadEmpty", RecordFailed(), CLOSE, True),
    (400, "TopicDisallowed", RecordFailed(), CLOSE, True),
    (403, "BadCertificate", RETRY, OPEN, True),
    (403, "BadCertificateEnvironment", RETRY, OPEN, True),
    (403, "BadEnvironmentKeyIdInToken", RETRY, OPEN, True),
    (403, "BadEnvironmentKeyInToken", RETRY, OPEN, True),
    (403, "ExpiredProviderToken", ResendOnce(RENEWED), NONE, False),
    (403, "Forbidden", RETRY, OPEN, True),
    (403, "InvalidProviderToken", RETRY, OPEN, True),
    (403, "MissingProviderToken", RETRY, OPEN, True),
    (403, "UnrelatedKeyIdInToken", RETRY, OPEN, True),
    (404, "BadPath", RecordFailed(), NONE, True),
    (405, "MethodNotAllowed", RecordFailed(), NONE, True),
    (410, "ExpiredToken", RemoveAddress(0), CLOSE, False),
    (410, "Unregistered", RemoveAddress(0), CLOSE, False),
    (413, "PayloadTooLarge", RecordFailed(), NONE, False),
    (429, "TooManyProviderTokenUpdates", RETRY, NONE, False),
    (429, "TooManyRequests", DelayDevice(), NONE, False),
    (500, "InternalServerError", RETRY, NONE, False),
    (503, "ServiceUnavailable", RETRY, NONE, False),
    (503, "Shutdown", RETRY, NONE, False),
]

OTHERS: list[tuple[int, str, Step, CircuitChange, bool]] = [
    (200, "", RecordSent(), CLOSE, False),
    (UNKNOWN, "connection lost", RetryLater(is_unknown=True), NONE, False),
    (400, "New", RecordFailed(), CLOSE, True),
    (403, "New", RETRY, OPEN, True),
    (410, "New", RemoveAddress(0), CLOSE, False),
    (413, "New", RecordFailed(), NONE, True),
    (429, "New", DelayDevice(), NONE, False),
    (502, "HTTP 502", RETRY, NONE, False),
]


@pytest.mark.parametrize(("status", "reason", "step", "circuit", "alarm"), DOCUMENTED + OTHERS)
def test_each_first_response_to_a_message_has_its_next_step(
    status: int, reason: str, step: Step, circuit: CircuitChange, alarm: bool
) -> None:
    reaction = react(ApnsResult(status, reason), RetryHistory(), False, lambda: SUSPECT)
    assert reaction == Reaction(step, circuit, "Apple refuses pushes" if alarm else "")


def test_every_documented_reason_has_a_row() -> None:
    assert {(status, reason) for status, reason, *_ in DOCUMENTED} == APPLE_REASONS


@pytest.mark.parametrize(
    ("result", "history", "uses_both", "step"),
    [
        (ApnsResult(410, "Unregistered", 7), RetryHistory(), True, RemoveAddress(7)),
        (ApnsResult(400, "BadDeviceToken"), RetryHistory(), True, ResendOnce(SANDBOX)),
        (ApnsResult(400, "BadDeviceToken"), RetryHistory(variants=frozenset({SANDBOX})), True, SUSPECT),
        (ApnsResult(403, "ExpiredProviderToken"), RetryHistory(variants=frozenset({RENEWED})), False, RetryLater()),
        (ApnsResult(403, "ExpiredProviderToken"), RetryHistory(retries=1), False, ResendOnce(RENEWED)),
        (ApnsResult(503, "Shutdown"), RetryHistory(retries=2), False, RetryLater()),
        (ApnsResult(503, "Shutdown"), RetryHistory(retries=1, unknown="reset"), False, RetryLater()),
        (ApnsResult(429, "TooManyRequests"), RetryHistory(retries=3), False, DelayDevice()),
        (ApnsResult(UNKNOWN, "reset"), RetryHistory(retries=1), False, RetryLater(is_unknown=True)),
    ],
)
def test_the_step_depends_on_the_messages_history(
    result: ApnsResult, history: RetryHistory, uses_both: bool, step: Step
) -> None:
    assert react(result, history, uses_both, lambda: SUSPECT).step == step
