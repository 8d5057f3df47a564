"""The English text of the line about an entry of an audit, of audiences, filters and exclusions."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import assert_never
from zoneinfo import ZoneInfo

from analytics.store.columns import enum_name
from protos.accounts.v1.accounts_pb2 import LinkPurpose, LogInMethod, MemberRole
from protos.analytics.v1.analytics_pb2 import Clause, Exclusion
from protos.analytics.v1.analytics_pb2 import ExclusionReason as Reason
from protos.analytics.v1.details_pb2 import (
    AddressChange,
    AliasCleared,
    AliasTakenAway,
    AudienceSummary,
    CommandOrigin,
    Detail,
    PartitionCount,
    Remark,
    RequestedChange,
    ServiceChannel,
)
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Comparison,
    Filter,
    Kind,
    ModelClause,
    StagGroup,
    TagGroup,
)
from protos.registry.v1.apps_pb2 import Platform
from services.domain.addresses import channel_name

# Audience summaries as the store keeps them, and the English text of summaries and of a filter's clauses.

_COMPARISONS = {
    Comparison.COMPARISON_GREATER: ">",
    Comparison.COMPARISON_LESS: "<",
    Comparison.COMPARISON_GREATER_OR_EQUAL: ">=",
    Comparison.COMPARISON_LESS_OR_EQUAL: "<=",
    Comparison.COMPARISON_EQUAL: "=",
}


def stored_summary(summary: AudienceSummary) -> bytes:
    """Return the summary as the store keeps it; b"" for a filter with conditions, which has a column of its own."""
    return b"" if summary.filter.ByteSize() else summary.SerializeToString(deterministic=True)


def read_summary(stored: bytes, stored_filter: bytes) -> AudienceSummary:
    """Return the summary from the store."""
    if stored_filter:
        return AudienceSummary(filter=Filter.FromString(stored_filter))
    return AudienceSummary.FromString(stored)


def audience_text(summary: AudienceSummary) -> str:
    """Return the audience as one line; commas separate the clauses of a filter, all of which must hold.

    For example `(tag 1 AND tag 2) OR (tag 5), NOT stag "news", region in 北京市`.
    """
    match summary.WhichOneof("audience"):
        case "everyone":
            return "everyone"
        case "filter":
            return filter_text(summary.filter)
        case "devices":
            return _count(summary.devices, "device", "devices")
        case "tokens":
            return _count(summary.tokens, "token", "tokens")
        case "aliases":
            which = "all their devices" if summary.aliases.all_devices else "the latest device of each"
            return f"{_count(summary.aliases.count, 'alias', 'aliases')}, {which}"
        case None:
            return "unknown"
        case never:
            assert_never(never)


def filter_text(rule: Filter) -> str:
    """Return the clauses of a filter as one line, `everyone` if it has none."""
    clauses = [
        _groups(_tag_names(rule.tags)),
        _negated(_tag_names(rule.not_tags)),
        _groups(_stag_names(rule.stags)),
        _negated(_stag_names(rule.not_stags)),
        *(_attribute(clause) for clause in rule.attributes),
        *(_activity(clause) for clause in rule.activity),
        *(_model(clause) for clause in rule.models),
    ]
    return ", ".join(filter(None, clauses)) or "everyone"


def _tag_names(tag_groups: Iterable[TagGroup]) -> list[list[str]]:
    return [[f"tag {tag}" for tag in group.tags] for group in tag_groups]


def _stag_names(stag_groups: Iterable[StagGroup]) -> list[list[str]]:
    return [[f'stag "{stag}"' for stag in group.stags] for group in stag_groups]


def _groups(names: Sequence[Sequence[str]]) -> str:
    texts = [" AND ".join(members) for members in names]
    return texts[0] if len(texts) == 1 else " OR ".join(f"({text})" for text in texts)


def _negated(names: Sequence[Sequence[str]]) -> str:
    text = _groups(names)
    if len(names) == 1 and len(names[0]) == 1:
        return f"NOT {text}"
    return f"NOT ({text})" if text else ""


def _attribute(clause: AttributeClause) -> str:
    name = enum_name(Attribute.DESCRIPTOR, clause.attribute, "ATTRIBUTE_")
    return f"{name} {_within(clause.negated)} {_one_of(list(clause.values))}"


def _model(clause: ModelClause) -> str:
    models = [*(f"{pair.brand} {pair.model}" for pair in clause.pairs), *(f"any {brand}" for brand in clause.brands)]
    return f"model {_within(clause.negated)} {_one_of(models)}"


def _activity(clause: ActivityClause) -> str:
    days = _count(clause.days, "day", "days")
    return f"opens in {days} {_COMPARISONS.get(clause.comparison, '?')} {clause.opens}"


def _within(negated: bool) -> str:
    return "not in" if negated else "in"


def _one_of(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


_REMARKS = {
    Remark.REMARK_IN_PARTITION_OF_DEVICE: "in the device's partition",
    Remark.REMARK_COUNTED_ONCE: "the log has the record more than once; it counted once",
    Remark.REMARK_WITHIN_HOUR: "in this hour",
    Remark.REMARK_KEY_OF_DEVICE: "its key",
    Remark.REMARK_ALL_KEYS: "all keys of the app",
    Remark.REMARK_PROVEN: "proven by the app's server",
}


def details_text(details: Iterable[Detail], zone: tzinfo = UTC) -> str:
    """Return the parts as one line with commas between them; times are in the zone."""
    return comma_joined(*(_text(detail, zone) for detail in details))


def comma_joined(*parts: str) -> str:
    """Join the parts that are not empty."""
    return ", ".join(part for part in parts if part)


def time_text(time_ms: int, zone: tzinfo) -> str:
    """Return a moment to the second, with the name of the zone."""
    return datetime.fromtimestamp(time_ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def _text(detail: Detail, zone: tzinfo) -> str:
    match detail.WhichOneof("detail"):
        case "message" | "push" | "task" | "draft" | "alias" as named:
            return f"{named} {getattr(detail, named)}"
        case "text" | "reason" as said:
            return str(getattr(detail, said))
        case "push_kind":
            return enum_name(Kind.DESCRIPTOR, detail.push_kind, "KIND_")
        case "audience":
            return audience_text(detail.audience)
        case "devices":
            return f"{detail.devices} device{_plural(detail.devices)}"
        case "origin":
            return _origin(detail.origin)
        case "accepted":
            return f"accepted {_origin(detail.accepted)}".strip()
        case "due_ms":
            return f"due {time_text(detail.due_ms, zone)}"
        case "until_ms":
            return f"until {time_text(detail.until_ms, zone)}"
        case "partitions":
            return _partitions(detail.partitions)
        case "failed_partitions":
            return f"{_partitions(PartitionCount(count=detail.failed_partitions))} it never starts"
        case "reason_count":
            return f"{detail.reason_count.reason}: {detail.reason_count.devices}"
        case "platform":
            return enum_name(Platform.DESCRIPTOR, detail.platform, "PLATFORM_")
        case "alias_cleared":
            return _alias_cleared(detail.alias_cleared)
        case "alias_taken":
            return _alias_taken(detail.alias_taken)
        case "address":
            return _address(detail.address)
        case "channel":
            return _channel(detail.channel)
        case "address_taken":
            return f"device {detail.address_taken} set the same address"
        case "tag":
            return f"{_sign(detail.tag.removed)}tag {detail.tag.tag}"
        case "stag":
            return f'{_sign(detail.stag.removed)}stag "{detail.stag.stag}"'
        case "attribute":
            return f"{detail.attribute.name} {detail.attribute.value or 'unknown'}"
        case "requested_change":
            return _requested_change(detail.requested_change, zone)
        case "device_numbers":
            return f"{detail.device_numbers} device number{_plural(detail.device_numbers)}"
        case "log_in_method":
            return enum_name(LogInMethod.DESCRIPTOR, detail.log_in_method, "LOG_IN_METHOD_").replace("_", " ")
        case "role":
            return enum_name(MemberRole.DESCRIPTOR, detail.role, "MEMBER_ROLE_")
        case "link_purpose":
            return enum_name(LinkPurpose.DESCRIPTOR, detail.link_purpose, "LINK_PURPOSE_").replace("_", " ")
        case "remark":
            return _REMARKS.get(detail.remark, "")
        case None:
            return ""
        case never:
            assert_never(never)


def _origin(origin: CommandOrigin) -> str:
    """Return for example `through v2 from 10.0.0.1, request 4f2a`."""
    if not origin.interface:
        return f"by {origin.writer}" if origin.writer else ""
    text = f"through {origin.interface}" + (f" from {origin.address}" if origin.address else "")
    return comma_joined(text, f"request {origin.request_id}" if origin.request_id else "")


def _partitions(partitions: PartitionCount) -> str:
    if partitions.of:
        return f"in {partitions.count} of {partitions.of} partitions"
    return f"in {partitions.count} partition{_plural(partitions.count)}"


def _alias_cleared(cleared: AliasCleared) -> str:
    return f"no alias if it is {cleared.only_alias}" if cleared.HasField("only_alias") else "no alias"


def _alias_taken(taken: AliasTakenAway) -> str:
    if not taken.token:
        return "the alias had too many devices"
    return f"the alias was taken by device {taken.token}" + (", which has proven it" if taken.proven else "")


def _channel(channel: ServiceChannel) -> str:
    name = f"simulator of {channel.channel}" if channel.simulated else channel.channel
    return f"{name}: {channel.devices}" if channel.devices else f"by the {name}" if channel.simulated else f"by {name}"


def _address(change: AddressChange) -> str:
    return f"{_sign(change.removed)}address of {channel_name(change.channel)} {change.fingerprint}".rstrip()


def _requested_change(change: RequestedChange, zone: tzinfo) -> str:
    details = details_text(change.details, zone)
    return f"{change.command}: {details}" if details else change.command


def _sign(removed: bool) -> str:
    return "-" if removed else "+"


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


# The English text of why a device is not in the audience of a push, for commands and programs.

_TEXTS = {
    Reason.EXCLUSION_REASON_NOT_REGISTERED: "not registered: the event log knows no device with this token",
    Reason.EXCLUSION_REASON_PUSH_FAILED: "the push failed in the device's partition, {partition}: {recorded_reason}",
    Reason.EXCLUSION_REASON_PUSH_CANCELLED: (
        "the push was cancelled before it started in the device's partition, {partition}"
    ),
    Reason.EXCLUSION_REASON_PUSH_NOT_STARTED: "the push has not started in the device's partition, {partition}",
    Reason.EXCLUSION_REASON_NOT_LISTED: "not one of the {count} targets",
    Reason.EXCLUSION_REASON_NO_TARGETS: "no device had the tokens or aliases of the push when it was requested",
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
