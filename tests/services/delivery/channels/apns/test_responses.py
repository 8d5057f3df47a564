"""The handling of Apple's responses."""

import pytest

from services.apns_simulator.script import APPLE_REASONS
from services.delivery.channels.apns.request import UNKNOWN, ApnsResult, parse_response
from services.delivery.channels.apns.responses import HANDLINGS, ResponseAction, handling_of, label

EXPECTED = {
    ResponseAction.FAIL: (
        "400 BadCollapseId, 400 BadExpirationDate, 400 BadMessageId, 400 BadPriority, 400 BadTopic, "
        "400 DeviceTokenNotForTopic, 400 DuplicateHeaders, 400 InvalidPushType, 400 MissingDeviceToken, "
        "400 MissingTopic, 400 PayloadEmpty, 400 TopicDisallowed, 404 BadPath, 405 MethodNotAllowed, "
        "413 PayloadTooLarge"
    ),
    ResponseAction.REMOVE: "410 ExpiredToken, 410 Unregistered",
    ResponseAction.TRY_OTHER_ENVIRONMENT: "400 BadDeviceToken",
    ResponseAction.STOP_APP: (
        "403 BadCertificate, 403 BadCertificateEnvironment, 403 BadEnvironmentKeyIdInToken, "
        "403 BadEnvironmentKeyInToken, 403 Forbidden, 403 InvalidProviderToken, 403 MissingProviderToken, "
        "403 UnrelatedKeyIdInToken"
    ),
    ResponseAction.RENEW_TOKEN: "403 ExpiredProviderToken",
    ResponseAction.HOLD_TOKEN: "429 TooManyProviderTokenUpdates",
    ResponseAction.DELAY_DEVICE: "429 TooManyRequests",
    ResponseAction.BACK_OFF: "500 InternalServerError, 503 ServiceUnavailable",
    ResponseAction.RECONNECT: "400 IdleTimeout, 503 Shutdown",
}
CASES = [
    (int(status), reason, action)
    for action, reasons in EXPECTED.items()
    for status, reason in (item.split() for item in reasons.split(", "))
]


@pytest.mark.parametrize(("status", "reason", "action"), CASES)
def test_each_documented_reason_has_its_action(status: int, reason: str, action: ResponseAction) -> None:
    answer = ApnsResult(status, reason)
    assert handling_of(answer).action is action
    assert label(answer) == reason


def test_every_documented_reason_is_handled() -> None:
    assert {(status, reason) for status, reason, _ in CASES} == set(HANDLINGS) == APPLE_REASONS


@pytest.mark.parametrize(
    ("answer", "action", "alarm"),
    [
        (ApnsResult(200), ResponseAction.ACCEPT, False),
        (ApnsResult(UNKNOWN, "connection lost"), ResponseAction.REPEAT, False),
        (ApnsResult(400, "New"), ResponseAction.FAIL, True),
        (ApnsResult(403, "New"), ResponseAction.STOP_APP, True),
        (ApnsResult(410, "New"), ResponseAction.REMOVE, False),
        (ApnsResult(429, "New"), ResponseAction.DELAY_DEVICE, False),
        (ApnsResult(500, "New"), ResponseAction.BACK_OFF, False),
        (ApnsResult(502, "HTTP 502"), ResponseAction.BACK_OFF, False),
        (ApnsResult(301, "HTTP 301"), ResponseAction.FAIL, True),
    ],
)
def test_other_reasons_are_handled_by_their_status(answer: ApnsResult, action: ResponseAction, alarm: bool) -> None:
    assert handling_of(answer) == (action, alarm)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"", ApnsResult(200)),
        (410, b'{"reason":"ExpiredToken","timestamp":5}', ApnsResult(410, "ExpiredToken", 5)),
        (410, b"", ApnsResult(410, "Unregistered")),
        (410, b'{"timestamp":5}', ApnsResult(410, "Unregistered", 5)),
        (503, b"<html>", ApnsResult(503, "HTTP 503")),
        (400, b'{"reason":7}', ApnsResult(400, "HTTP 400")),
    ],
)
def test_a_response_is_parsed(status: int, body: bytes, expected: ApnsResult) -> None:
    assert parse_response(status, body) == expected
