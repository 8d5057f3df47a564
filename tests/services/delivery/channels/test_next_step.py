"""The next step after each of Apple's responses."""

import pytest

from services.apns_simulator.script import APPLE_REASONS
from services.delivery.channels.apns.reasons import (
    CircuitChange,
    DelayDevice,
    NextStep,
    RecordFailed,
    RecordSent,
    RemoveToken,
    ResendToSandbox,
    ResendWithNewToken,
    RetryHistory,
    RetryLater,
    Step,
    SuspectToken,
    backoff_ms,
    react,
)
from services.delivery.channels.apns.request import UNKNOWN, ApnsResult

NONE, OPEN, CLOSE = CircuitChange.NONE, CircuitChange.OPEN, CircuitChange.CLOSE
RETRY = RetryLater(1000)

DOCUMENTED: list[tuple[int, str, Step, CircuitChange, bool]] = [
    (400, "BadCollapseId", RecordFailed("BadCollapseId"), CLOSE, True),
    (400, "BadDeviceToken", SuspectToken("BadDeviceToken"), CLOSE, False),
    (400, "BadExpirationDate", RecordFailed("BadExpirationDate"), CLOSE, True),
    (400, "BadMessageId", RecordFailed("BadMessageId"), CLOSE, True),
    (400, "BadPriority", RecordFailed("BadPriority"), CLOSE, True),
    (400, "BadTopic", RecordFailed("BadTopic"), CLOSE, True),
    (400, "DeviceTokenNotForTopic", RecordFailed("DeviceTokenNotForTopic"), CLOSE, True),
    (400, "DuplicateHeaders", RecordFailed("DuplicateHeaders"), CLOSE, True),
    (400, "IdleTimeout", RETRY, CLOSE, False),
    (400, "InvalidPushType", RecordFailed("InvalidPushType"), CLOSE, True),
    (400, "MissingDeviceToken", RecordFailed("MissingDeviceToken"), CLOSE, True),
    (400, "MissingTopic", RecordFailed("MissingTopic"), CLOSE, True),
    (400, "PayloadEmpty", RecordFailed("PayloadEmpty"), CLOSE, True),
    (400, "TopicDisallowed", RecordFailed("TopicDisallowed"), CLOSE, True),
    (403, "BadCertificate", RETRY, OPEN, True),
    (403, "BadCertificateEnvironment", RETRY, OPEN, True),
    (403, "BadEnvironmentKeyIdInToken", RETRY, OPEN, True),
    (403, "BadEnvironmentKeyInToken", RETRY, OPEN, True),
    (403, "ExpiredProviderToken", ResendWithNewToken(), NONE, False),
    (403, "Forbidden", RETRY, OPEN, True),
    (403, "InvalidProviderToken", RETRY, OPEN, True),
    (403, "MissingProviderToken", RETRY, OPEN, True),
    (403, "UnrelatedKeyIdInToken", RETRY, OPEN, True),
    (404, "BadPath", RecordFailed("BadPath"), NONE, True),
    (405, "MethodNotAllowed", RecordFailed("MethodNotAllowed"), NONE, True),
    (410, "ExpiredToken", RemoveToken("ExpiredToken", 0), CLOSE, False),
    (410, "Unregistered", RemoveToken("Unregistered", 0), CLOSE, False),
    (413, "PayloadTooLarge", RecordFailed("PayloadTooLarge"), NONE, False),
    (429, "TooManyProviderTokenUpdates", RETRY, NONE, False),
    (429, "TooManyRequests", DelayDevice(1000), NONE, False),
    (500, "InternalServerError", RETRY, NONE, False),
    (503, "ServiceUnavailable", RETRY, NONE, False),
    (503, "Shutdown", RETRY, NONE, False),
]

OTHERS: list[tuple[int, str, Step, CircuitChange, bool]] = [
    (200, "", RecordSent(), CLOSE, False),
    (UNKNOWN, "connection lost", RetryLater(1000, "connection lost"), NONE, False),
    (400, "New", RecordFailed("New"), CLOSE, True),
    (403, "New", RETRY, OPEN, True),
    (410, "New", RemoveToken("New", 0), CLOSE, False),
    (413, "New", RecordFailed("New"), NONE, True),
    (429, "New", DelayDevice(1000), NONE, False),
    (502, "HTTP 502", RETRY, NONE, False),
]


@pytest.mark.parametrize(("status", "reason", "step", "circuit", "alarm"), DOCUMENTED + OTHERS)
def test_each_first_response_to_a_message_has_its_next_step(
    status: int, reason: str, step: Step, circuit: CircuitChange, alarm: bool
) -> None:
    assert react(ApnsResult(status, reason), RetryHistory(), False) == NextStep(step, circuit, alarm)


def test_every_documented_reason_has_a_row() -> None:
    assert {(status, reason) for status, reason, *_ in DOCUMENTED} == APPLE_REASONS


@pytest.mark.parametrize(
    ("result", "history", "uses_both", "step"),
    [
        (ApnsResult(410, "Unregistered", 7), RetryHistory(), True, RemoveToken("Unregistered", 7)),
        (ApnsResult(400, "BadDeviceToken"), RetryHistory(), True, ResendToSandbox()),
        (ApnsResult(400, "BadDeviceToken"), RetryHistory(sandbox=True), True, SuspectToken("BadDeviceToken")),
        (ApnsResult(403, "ExpiredProviderToken"), RetryHistory(renewed=True), False, RetryLater(1000)),
        (ApnsResult(403, "ExpiredProviderToken"), RetryHistory(retries=1), False, ResendWithNewToken()),
        (ApnsResult(503, "Shutdown"), RetryHistory(retries=2), False, RetryLater(4000)),
        (ApnsResult(503, "Shutdown"), RetryHistory(retries=1, unknown="reset"), False, RetryLater(2000)),
        (ApnsResult(429, "TooManyRequests"), RetryHistory(retries=3), False, DelayDevice(8000)),
        (ApnsResult(UNKNOWN, "reset"), RetryHistory(retries=1), False, RetryLater(2000, "reset")),
    ],
)
def test_the_step_depends_on_the_messages_history(
    result: ApnsResult, history: RetryHistory, uses_both: bool, step: Step
) -> None:
    assert react(result, history, uses_both).step == step


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (RecordSent(), RetryHistory(1, unknown="reset")),
        (RecordFailed("BadTopic"), RetryHistory(1, unknown="reset")),
        (RemoveToken("Unregistered", 0), RetryHistory(1, unknown="reset")),
        (ResendToSandbox(), RetryHistory(1, sandbox=True, unknown="reset")),
        (ResendWithNewToken(), RetryHistory(1, renewed=True, unknown="reset")),
        (RetryLater(2000), RetryHistory(2, unknown="reset")),
        (RetryLater(2000, "no answer in time"), RetryHistory(2, unknown="no answer in time")),
        (DelayDevice(2000), RetryHistory(2, unknown="reset")),
    ],
)
def test_a_step_changes_the_messages_history(step: Step, expected: RetryHistory) -> None:
    assert RetryHistory(1, unknown="reset").apply(step) == expected


def test_backoff_doubles_up_to_fifteen_minutes() -> None:
    assert [backoff_ms(retries) for retries in (1, 2, 3, 10, 11, 100)] == [1000, 2000, 4000, 512_000, 900_000, 900_000]
