"""Recorded reasons are parsed again, whatever role recorded them."""

from typing import get_args

import pytest

from services.domain.device_protocol.answers import GoodbyeReason
from services.domain.recorded_reasons import (
    AcceptanceUnknown,
    ApprovalNeeded,
    AttemptsFailed,
    AudienceTooLarge,
    AudienceUnresolved,
    ChannelAcceptanceUnknown,
    FixedReason,
    KeyRevoked,
    OutcomesForgotten,
    RecordedReason,
    RefusedUntilExpiry,
    TooMuchHeldUp,
    parsed_reason,
)
from services.gateway.rules import EndReason

RECORDED: list[tuple[RecordedReason, str]] = [
    *((reason, reason.value) for reason in FixedReason),
    (AttemptsFailed(5, "a, b: 7\nc"), "5 attempts failed, the last one with: a, b: 7\nc"),
    (AudienceUnresolved(""), "its time to live was over before targeting resolved its audience"),
    (AudienceUnresolved("no disk"), "its time to live was over before targeting resolved its audience: no disk"),
    (AudienceTooLarge(9), "its audience in a partition makes a record of 9 bytes, too large for the log"),
    (TooMuchHeldUp(9), "9 bytes of the app's pushes wait for targeting already"),
    (AcceptanceUnknown("no answer\nfor 10 s"), "unknown: no answer\nfor 10 s"),
    (RefusedUntilExpiry("ServiceUnavailable"), "refused until it expired: ServiceUnavailable"),
    (ChannelAcceptanceUnknown(""), "unknown whether the channel shows it"),
    (ChannelAcceptanceUnknown("quota\nused up"), "unknown whether the channel shows it: quota\nused up"),
    (KeyRevoked(""), "revoked"),
    (KeyRevoked("10.0.0.1"), "revoked by 10.0.0.1"),
    (
        ApprovalNeeded("0a1b"),
        "by now it needs the approval of a second person, for which it waits as draft 0a1b",
    ),
    (OutcomesForgotten(30), "outcomes are kept for 30 days"),
]


@pytest.mark.parametrize(("reason", "recorded"), RECORDED, ids=str)
def test_a_reason_is_recorded_with_these_words_and_parsed_again(reason: RecordedReason, recorded: str) -> None:
    """The log has these words for ever: a reason gets other words only as another value."""
    assert str(reason) == recorded
    assert parsed_reason(recorded) == reason


def test_every_kind_of_reason_is_tested() -> None:
    assert {type(reason) for reason, _ in RECORDED} == set(get_args(RecordedReason))


def test_the_reasons_with_which_a_gateway_ends_a_connection_are_known() -> None:
    assert {*get_args(EndReason), *get_args(GoodbyeReason)} <= {reason.value for reason in FixedReason}


@pytest.mark.parametrize("recorded", ["", "BadDeviceToken", "Unregistered", "revoked?", "5 attempts failed"])
def test_what_apple_or_a_person_wrote_is_no_reason_of_the_service(recorded: str) -> None:
    assert parsed_reason(recorded) is None
