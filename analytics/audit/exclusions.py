"""The English text of why a device is not in the audience of a push, for commands and programs."""

from collections.abc import Iterable
from zoneinfo import ZoneInfo

from analytics.audit.details.text import comma_joined, time_text
from protos.analytics.v1.analytics_pb2 import Clause, Exclusion
from protos.analytics.v1.analytics_pb2 import ExclusionReason as Reason

_TEXTS = {
    Reason.EXCLUSION_REASON_NOT_REGISTERED: "not registered: the event log knows no device with this token",
    Reason.EXCLUSION_REASON_PUSH_FAILED: "the push failed in the device's partition, {partition}: {recorded_reason}",
    Reason.EXCLUSION_REASON_PUSH_CANCELLED: (
        "the push was cancelled before it started in the device's partition, {partition}"
    ),
    Reason.EXCLUSION_REASON_PUSH_NOT_STARTED: "the push has not started in the device's partition, {partition}",
    Reason.EXCLUSION_REASON_NOT_LISTED: "not one of the {count} targets",
    Reason.EXCLUSION_REASON_REGISTERED_LATER: "registered after the push started, {time}",
    Reason.EXCLUSION_REASON_REMOVED: "removed before the push started: {removal}",
    Reason.EXCLUSION_REASON_RECORD_REPLACED: (
        "not in the audience; what the device was like then was replaced in the log before analytics read it"
    ),
    Reason.EXCLUSION_REASON_CLAUSES: "excluded by {clauses}",
    Reason.EXCLUSION_REASON_RECORD_LACKS_CHANGES: (
        "not in the audience; its record from before lacks {count} changes, which `audit device` shows as asked"
    ),
    Reason.EXCLUSION_REASON_CHANGED_AT_START: (
        "not in the audience, though its last record from before matches: it changed as the push started"
    ),
}


def verdict_text(exclusion: Exclusion, clauses: Iterable[Clause], zone: ZoneInfo) -> str:
    """Return the reason as one line. `clauses`: those of the filter with their results."""
    time = time_text(exclusion.time_ms, zone)
    failed = [f"{clause.text} (it had {clause.found})" for clause in clauses if not clause.holds]
    return _TEXTS[exclusion.reason].format(
        partition=exclusion.partition,
        count=exclusion.count,
        time=time,
        recorded_reason=exclusion.recorded_reason,
        removal=comma_joined(exclusion.recorded_reason, time),
        clauses="; ".join(failed),
    )
