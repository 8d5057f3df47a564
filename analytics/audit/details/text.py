"""The English text of the line about an entry of an audit, for commands, programs and the store."""

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import assert_never

from analytics.audit.details.audience import audience_text
from analytics.store.enum_names import enum_name
from protos.accounts.v1.accounts_pb2 import LinkPurpose, LogInMethod, MemberRole
from protos.analytics.v1.details_pb2 import (
    AliasCleared,
    AliasTakenAway,
    CommandOrigin,
    Detail,
    PartitionCount,
    Remark,
    RequestedChange,
)
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import Platform

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


def _requested_change(change: RequestedChange, zone: tzinfo) -> str:
    details = details_text(change.details, zone)
    return f"{change.command}: {details}" if details else change.command


def _sign(removed: bool) -> str:
    return "-" if removed else "+"


def _plural(count: int) -> str:
    return "" if count == 1 else "s"
