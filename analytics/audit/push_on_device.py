"""The audit of one push on one device: whether and why the device was in the audience, and the outcomes there."""

from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pyroaring import BitMap

from analytics.audit.clauses import clauses
from analytics.audit.device_states import DeviceState, find_device
from analytics.audit.find_push import PushRecord
from analytics.audit.timeline import by_time, comma_joined, entry, time_text
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import Clause, PushOnDevice, TimelineEntry
from protos.push.v1.push_pb2 import Filter

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
SELECT kind, toUnixTimestamp64Milli(time), msgid, reason FROM deliveries FINAL
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


class PartitionEvent(NamedTuple):
    """One event of a push in the device's partition; `audience` is a serialised bitmap in base64."""

    time_ms: int
    audience: str
    reason: str


class PartitionStart(NamedTuple):
    """The start of a push in the device's partition: when its audience was fixed, and the device numbers in it."""

    time_ms: int
    numbers: BitMap
    not_listed: str
    """The verdict on a device that is not in the list of devices; "" for a push without such a list."""


async def push_on_device(clickhouse: ClickHouse, push: PushRecord, token: str, zone: ZoneInfo) -> PushOnDevice:
    token, states = await find_device(clickhouse, push.appkey, token)
    if not states:
        return PushOnDevice(token=token, verdict="not registered: the event log knows no device with this token")
    parameters = {"appkey": push.appkey, "msgid": push.msgid, "last": push.last_msgid, "partition": states[0].partition}
    events = {event: PartitionEvent(*rest) for event, *rest in await clickhouse.rows(_PARTITION, parameters)}
    start = await _start(clickhouse, push, parameters, events.get("started"))
    if start is None:
        return PushOnDevice(token=token, verdict=_not_started(events, states[0].partition))
    numbers = sorted({state.number for state in states} & set(start.numbers))
    verdict, evaluated = await _verdict(clickhouse, push, token, start, states, zone, is_in=bool(numbers))
    outcomes = await clickhouse.rows(_OUTCOMES, {**parameters, "numbers": numbers})
    return PushOnDevice(
        token=token,
        in_audience=bool(numbers),
        verdict=verdict,
        clauses=evaluated,
        timeline=by_time(
            [
                *([entry("audience", start.time_ms)] if numbers else []),
                *(
                    entry(kind, time_ms, detail=comma_joined(f"message {msgid}", reason))
                    for kind, time_ms, msgid, reason in outcomes
                ),
                *_endings(events if numbers else {}),
            ]
        ),
    )


def _not_started(events: dict[str, PartitionEvent], partition: int) -> str:
    if (failed := events.get("failed")) is not None:
        return f"the push failed in the device's partition, {partition}: {failed.reason}"
    if "cancelled" in events:
        return f"the push was cancelled before it started in the device's partition, {partition}"
    return f"the push has not started in the device's partition, {partition}"


def _endings(events: dict[str, PartitionEvent]) -> list[TimelineEntry]:
    """Return entries for the cancel, the finish and the failure of the push in the device's partition."""
    names = {"cancelled": "push cancelled", "finished": "finished", "failed": "push failed"}
    return [
        entry(names[event], one.time_ms, detail=comma_joined("in the device's partition", one.reason))
        for event, one in events.items()
        if event in names
    ]


async def _start(
    clickhouse: ClickHouse, push: PushRecord, parameters: dict[str, object], started: PartitionEvent | None
) -> PartitionStart | None:
    if push.kind == "unicast":
        rows = await clickhouse.rows(_LISTED, parameters)
        return (
            PartitionStart(push.time_ms, BitMap(rows[0][0]), f"not one of the {rows[0][1]} targets") if rows else None
        )
    return PartitionStart(started.time_ms, BitMap.deserialize(b64decode(started.audience)), "") if started else None


async def _verdict(
    clickhouse: ClickHouse,
    push: PushRecord,
    token: str,
    start: PartitionStart,
    states: Sequence[DeviceState],
    zone: ZoneInfo,
    *,
    is_in: bool,
) -> tuple[str, list[Clause]]:
    """Return the verdict, and the filter's clauses evaluated for the device's state when the push started."""
    if start.not_listed:
        return ("in the audience: the push lists it" if is_in else start.not_listed), []
    before = [state for state in states if state.time_ms <= start.time_ms]
    evaluated: list[Clause] = []
    if before and not before[-1].removed_ms:
        rule = Filter.FromString(push.filter)
        opens = await _opens(clickhouse, push.appkey, before[-1], rule, start.time_ms, zone)
        evaluated = clauses(rule, before[-1], opens)
    if is_in:
        return "in the audience when the push started", evaluated
    if not before:
        return _unknown_then(states[0], start, zone), []
    if before[-1].removed_ms:
        when = time_text(before[-1].removed_ms, zone)
        return f"removed before the push started: {comma_joined(before[-1].removed_reason, when)}", []
    failed = [clause for clause in evaluated if not clause.holds]
    if failed:
        return "excluded by " + "; ".join(f"{clause.text} (it had {clause.found})" for clause in failed), evaluated
    return await _unexplained(clickhouse, push.appkey, token, before[-1], start), evaluated


def _unknown_then(first: DeviceState, start: PartitionStart, zone: ZoneInfo) -> str:
    if first.registered_ms > start.time_ms:
        return f"registered after the push started, {time_text(first.registered_ms, zone)}"
    return "not in the audience; what the device was like then was replaced in the log before analytics read it"


async def _unexplained(
    clickhouse: ClickHouse, appkey: str, token: str, last: DeviceState, start: PartitionStart
) -> str:
    """Return the verdict on a device whose last state before the start matches: it changed after that state."""
    parameters = {"appkey": appkey, "token": token, "since_ms": last.time_ms, "until_ms": start.time_ms}
    count = (await clickhouse.rows(_LATER_COMMANDS, parameters))[0][0]
    if count:
        return f"not in the audience; its record from before lacks {count} changes, which `audit device` shows as asked"
    return "not in the audience, though its last record from before matches: it changed as the push started"


async def _opens(
    clickhouse: ClickHouse, appkey: str, device: DeviceState, rule: Filter, until_ms: int, zone: ZoneInfo
) -> dict[int, int]:
    """Return the device's app opens within each number of days, today included, that the filter asks for."""
    now = datetime.fromtimestamp(until_ms / 1000, zone)
    parameters = {"appkey": appkey, "partition": device.partition, "number": device.number, "until_ms": until_ms}
    found = {}
    for days in {clause.days for clause in rule.activity}:
        first = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days - 1)
        rows = await clickhouse.rows(_OPENS, {**parameters, "since_ms": int(first.timestamp() * 1000)})
        found[days] = rows[0][0]
    return found
