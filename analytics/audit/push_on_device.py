"""The audit of one push on one device: whether and why the device was in the audience, and the outcomes there."""

from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pyroaring import BitMap

from analytics.audit.details import reasons
from analytics.audit.details_text import comma_joined, filter_text, verdict_text
from analytics.audit.device import DeviceRecord, find_device
from analytics.audit.find_push import PushRecord
from analytics.audit.timeline import by_time, entry, of_outcome
from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import enum_name
from protos.analytics.v1.analytics_pb2 import Clause, Exclusion, FoundValues, PushOnDevice, TimelineEntry
from protos.analytics.v1.analytics_pb2 import ExclusionReason as Reason
from protos.analytics.v1.details_pb2 import Detail, Remark
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Comparison,
    Filter,
    ModelClause,
)

# Evaluates each clause of a filter for one device.

_HOLDS: Mapping[int, Callable[[int, int], bool]] = {
    Comparison.COMPARISON_GREATER: lambda opens, wanted: opens > wanted,
    Comparison.COMPARISON_LESS: lambda opens, wanted: opens < wanted,
    Comparison.COMPARISON_GREATER_OR_EQUAL: lambda opens, wanted: opens >= wanted,
    Comparison.COMPARISON_LESS_OR_EQUAL: lambda opens, wanted: opens <= wanted,
    Comparison.COMPARISON_EQUAL: lambda opens, wanted: opens == wanted,
}


def clauses(rule: Filter, device: DeviceRecord, opens: Mapping[int, int]) -> list[Clause]:
    """Return every clause with its result; none for an audience of all devices. All must hold for the filter to match.

    `opens`: the device's app opens within each number of days that the filter asks for.
    """
    return [
        *_tag_clauses(rule, device),
        *_stag_clauses(rule, device),
        *(_attribute(clause, device) for clause in rule.attributes),
        *(_activity(clause, opens.get(clause.days, 0)) for clause in rule.activity),
        *(_model(clause, device) for clause in rule.models),
    ]


def _clause(condition: Filter, holds: bool, found: str, found_values: FoundValues) -> Clause:
    text = filter_text(condition)
    return Clause(text=text, holds=holds, found=found, filter=condition, found_values=found_values)


def _tag_clauses(rule: Filter, device: DeviceRecord) -> Iterator[Clause]:
    tags = sorted(device.tags)
    found = comma_joined(*(f"tag {tag}" for tag in tags)) or "no tags", FoundValues(tags=tags)
    if rule.tags:
        holds = _any_group((group.tags for group in rule.tags), device.tags)
        yield _clause(Filter(tags=rule.tags), holds, *found)
    if rule.not_tags:
        holds = not _any_group((group.tags for group in rule.not_tags), device.tags)
        yield _clause(Filter(not_tags=rule.not_tags), holds, *found)


def _stag_clauses(rule: Filter, device: DeviceRecord) -> Iterator[Clause]:
    stags = sorted(device.stags)
    found = comma_joined(*(f'stag "{stag}"' for stag in stags)) or "no stags", FoundValues(stags=stags)
    if rule.stags:
        holds = _any_group((group.stags for group in rule.stags), device.stags)
        yield _clause(Filter(stags=rule.stags), holds, *found)
    if rule.not_stags:
        holds = not _any_group((group.stags for group in rule.not_stags), device.stags)
        yield _clause(Filter(not_stags=rule.not_stags), holds, *found)


def _any_group(groups: Iterable[Sequence[int] | Sequence[str]], have: Collection[int | str]) -> bool:
    return any(all(wanted in have for wanted in group) for group in groups)


def _attribute(clause: AttributeClause, device: DeviceRecord) -> Clause:
    name = enum_name(Attribute.DESCRIPTOR, clause.attribute, "ATTRIBUTE_")
    value = device.attribute(name)
    within = value != "" and value in clause.values
    found = f"{name} {value or 'unknown'}"
    return _clause(Filter(attributes=[clause]), within != clause.negated, found, FoundValues(attribute=value))


def _activity(clause: ActivityClause, opens: int) -> Clause:
    holds = _HOLDS.get(clause.comparison)
    known = holds is not None and holds(opens, clause.opens)
    return _clause(Filter(activity=[clause]), known, f"{opens} app opens", FoundValues(opens=opens))


def _model(clause: ModelClause, device: DeviceRecord) -> Clause:
    brand, model = device.attribute("brand"), device.attribute("model")
    is_one_of_pairs = model != "" and (brand, model) in [(pair.brand, pair.model) for pair in clause.pairs]
    within = is_one_of_pairs or (brand != "" and brand in clause.brands)
    found = f"model {brand or 'unknown'} {model or 'unknown'}"
    return _clause(Filter(models=[clause]), within != clause.negated, found, FoundValues(brand=brand, model=model))


_LISTED = """
SELECT arrayDistinct(arrayFilter((n, p) -> p = {partition:UInt16}, target_numbers, target_partitions)),
  length(target_numbers)
FROM pushes FINAL WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String}
"""
_PARTITION = """
SELECT event, toUnixTimestamp64Milli(time), base64Encode(audience), reason FROM push_partitions FINAL
WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} AND partition = {partition:UInt16}
"""
_OUTCOMES = """
SELECT kind, toUnixTimestamp64Milli(time), msgid, reason, via, simulated FROM deliveries FINAL
WHERE appkey = {appkey:String} AND msgid BETWEEN {msgid:UInt64} AND {last:UInt64}
  AND partition = {partition:UInt16} AND number IN {numbers:Array(UInt32)}
"""
_OPENS = """
SELECT count() FROM sessions FINAL
WHERE appkey = {appkey:String} AND partition = {partition:UInt16} AND number = {number:UInt32} AND kind = 'app_opened'
  AND time >= fromUnixTimestamp64Milli({since_ms:Int64}) AND time <= fromUnixTimestamp64Milli({until_ms:Int64})
"""
_LATER_COMMANDS = """
SELECT count() FROM device_commands FINAL WHERE appkey = {appkey:String} AND token = {token:String}
  AND time > fromUnixTimestamp64Milli({since_ms:Int64}) AND time <= fromUnixTimestamp64Milli({until_ms:Int64})
"""

_HOUR_MS = 3_600_000


class PartitionEvent(NamedTuple):
    """One event of a push in the device's partition; `audience` is a serialised bitmap in base64."""

    time_ms: int
    audience: str
    reason: str


class PartitionStart(NamedTuple):
    """The start of a push in the device's partition: when its audience was fixed, and the device numbers in it."""

    time_ms: int
    numbers: BitMap
    targets: int | None
    """Targets of a push to a list; None for a push without a list."""


async def push_on_device(clickhouse: ClickHouse, push: PushRecord, token: str, zone: ZoneInfo) -> PushOnDevice:
    token, states = await find_device(clickhouse, push.appkey, token)
    if not states:
        return _excluded(token, Exclusion(reason=Reason.EXCLUSION_REASON_NOT_REGISTERED), zone)
    parameters = {"appkey": push.appkey, "msgid": push.msgid, "last": push.last_msgid, "partition": states[0].partition}
    events = {event: PartitionEvent(*rest) for event, *rest in await clickhouse.rows(_PARTITION, parameters)}
    start = await _start(clickhouse, push, parameters, events.get("started"))
    if start is None:
        return _excluded(token, _not_started(events, states[0].partition), zone)
    numbers = sorted({state.number for state in states} & set(start.numbers))
    evaluated = await _clauses(clickhouse, push, start, states)
    if not numbers:
        exclusion = await _exclusion(clickhouse, push.appkey, token, start, states, evaluated)
        return _excluded(token, exclusion, zone, evaluated)
    outcomes = await clickhouse.rows(_OUTCOMES, {**parameters, "numbers": numbers})
    is_ios = push.platform == "ios"
    how = "in the audience when the push started" if start.targets is None else "in the audience: the push lists it"
    return PushOnDevice(
        token=token,
        in_audience=True,
        verdict=how,
        clauses=evaluated,
        timeline=by_time(
            [
                entry("audience", start.time_ms),
                *(of_outcome(*each, simulated=simulated, is_ios=is_ios) for *each, simulated in outcomes),
                *_endings(events),
            ],
            zone,
        ),
    )


def _excluded(token: str, exclusion: Exclusion, zone: ZoneInfo, evaluated: Sequence[Clause] = ()) -> PushOnDevice:
    verdict = verdict_text(exclusion, evaluated, zone)
    return PushOnDevice(token=token, verdict=verdict, clauses=evaluated, exclusion=exclusion)


def _not_started(events: dict[str, PartitionEvent], partition: int) -> Exclusion:
    if (failed := events.get("failed")) is not None:
        reason, recorded_reason = Reason.EXCLUSION_REASON_PUSH_FAILED, failed.reason
    elif "cancelled" in events:
        reason, recorded_reason = Reason.EXCLUSION_REASON_PUSH_CANCELLED, ""
    else:
        reason, recorded_reason = Reason.EXCLUSION_REASON_PUSH_NOT_STARTED, ""
    return Exclusion(reason=reason, partition=partition, recorded_reason=recorded_reason)


def _endings(events: dict[str, PartitionEvent]) -> list[TimelineEntry]:
    """Return entries for the cancel, the finish and the failure of the push in the device's partition."""
    names = {"cancelled": "push cancelled", "finished": "finished", "failed": "push failed"}
    return [
        TimelineEntry(
            first_ms=one.time_ms,
            last_ms=one.time_ms,
            event=names[event],
            count=1,
            details=[Detail(remark=Remark.REMARK_IN_PARTITION_OF_DEVICE), *reasons(one.reason)],
            reason=one.reason,
        )
        for event, one in events.items()
        if event in names
    ]


async def _start(
    clickhouse: ClickHouse, push: PushRecord, parameters: dict[str, object], started: PartitionEvent | None
) -> PartitionStart | None:
    if push.kind == "unicast":
        rows = await clickhouse.rows(_LISTED, parameters)
        return PartitionStart(push.time_ms, BitMap(rows[0][0]), rows[0][1]) if rows else None
    return PartitionStart(started.time_ms, BitMap.deserialize(b64decode(started.audience)), None) if started else None


async def _clauses(
    clickhouse: ClickHouse, push: PushRecord, start: PartitionStart, states: Sequence[DeviceRecord]
) -> list[Clause]:
    """Return the filter's clauses evaluated for the device's state when the push started, if it was registered then."""
    before = _before(states, start)
    if start.targets is not None or before is None or before.removed_ms:
        return []
    rule = push.rule or Filter()
    return clauses(rule, before, await _opens(clickhouse, push.appkey, before, rule, start.time_ms))


async def _exclusion(
    clickhouse: ClickHouse,
    appkey: str,
    token: str,
    start: PartitionStart,
    states: Sequence[DeviceRecord],
    evaluated: Sequence[Clause],
) -> Exclusion:
    """Return why the device is not in the audience of a push that started in its partition."""
    partition = states[0].partition
    if start.targets is not None:
        reason = Reason.EXCLUSION_REASON_NOT_LISTED if start.targets else Reason.EXCLUSION_REASON_NO_TARGETS
        return Exclusion(reason=reason, partition=partition, count=start.targets)
    before = _before(states, start)
    if before is None:
        registered_ms = states[0].registered_ms
        if registered_ms > start.time_ms:
            reason = Reason.EXCLUSION_REASON_REGISTERED_LATER
            return Exclusion(reason=reason, partition=partition, time_ms=registered_ms)
        return Exclusion(reason=Reason.EXCLUSION_REASON_RECORD_REPLACED, partition=partition)
    if before.removed_ms:
        return Exclusion(
            reason=Reason.EXCLUSION_REASON_REMOVED,
            partition=partition,
            time_ms=before.removed_ms,
            recorded_reason=before.removed_reason,
        )
    if not all(clause.holds for clause in evaluated):
        return Exclusion(reason=Reason.EXCLUSION_REASON_CLAUSES, partition=partition)
    parameters = {"appkey": appkey, "token": token, "since_ms": before.time_ms, "until_ms": start.time_ms}
    if count := (await clickhouse.rows(_LATER_COMMANDS, parameters))[0][0]:
        return Exclusion(reason=Reason.EXCLUSION_REASON_RECORD_LACKS_CHANGES, partition=partition, count=count)
    return Exclusion(reason=Reason.EXCLUSION_REASON_CHANGED_AT_START, partition=partition)


def _before(states: Sequence[DeviceRecord], start: PartitionStart) -> DeviceRecord | None:
    """Return the device's last state from before the push started."""
    return next((state for state in reversed(states) if state.time_ms <= start.time_ms), None)


async def _opens(
    clickhouse: ClickHouse, appkey: str, device: DeviceRecord, rule: Filter, until_ms: int
) -> dict[int, int]:
    """Return the device's app opens within each number of days that the filter asks for.

    As in targeting, days have 24 hours, and the first hour of the UTC clock counts whole.
    """
    parameters = {"appkey": appkey, "partition": device.partition, "number": device.number, "until_ms": until_ms}
    found = {}
    for days in {clause.days for clause in rule.activity}:
        since_ms = until_ms // _HOUR_MS * _HOUR_MS - days * 24 * _HOUR_MS
        rows = await clickhouse.rows(_OPENS, {**parameters, "since_ms": since_ms})
        found[days] = rows[0][0]
    return found
