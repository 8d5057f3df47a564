"""What happened to one push: the queries, and the timeline made of their rows."""

from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from analytics.audit.find_push import Push, find_push, no_such_push
from analytics.audit.push_on_device import push_on_device
from analytics.audit.push_states import states
from analytics.audit.timeline import entry, in_order, joined, moment, source
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditPushResponse, PartitionSize, StateCount, TimelineEntry

_REQUEST = """
SELECT request_json FROM {table:Identifier}
WHERE request_id = {request_id:String} AND request_json != '' ORDER BY msgid LIMIT 1
"""
_TASK = """
SELECT event, toUnixTimestamp64Milli(time), toUnixTimestamp64Milli(due), writer, door, address, request_id
FROM tasks FINAL WHERE task_key = {task_key:String}
"""
_CANCELS = """
SELECT toUnixTimestamp64Milli(time), writer, door, address, request_id
FROM push_cancels FINAL WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} ORDER BY time
"""
_PARTITIONS = """
SELECT event, toUnixTimestamp64Milli(min(time)), toUnixTimestamp64Milli(max(time)), count(), sum(count),
  toUnixTimestamp64Milli(max(expires))
FROM push_partitions FINAL WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} GROUP BY event
"""
_SIZES = """
SELECT partition, count AS devices FROM push_partitions FINAL
WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} AND event = 'started' AND count > 0 ORDER BY partition
"""
_SIZES_OF_LIST = """
SELECT arrayJoin(target_partitions) AS partition, count() FROM pushes FINAL
WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} GROUP BY partition ORDER BY partition
"""
_REPEATED = """
SELECT event, toUnixTimestamp64Milli(min(last)), toUnixTimestamp64Milli(max(last)), sum(records) - count(), count()
FROM (
  SELECT event, max(time) AS last, count() AS records FROM push_records FINAL
  WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} GROUP BY event, _partition HAVING records > 1)
GROUP BY event
"""
_REPEATED_AS = {"command": "command", "started": "audience", "cancelled": "push cancelled", "finished": "finished"}
_OUTCOMES = """
WITH firsts AS (
  SELECT kind, min(time) AS first FROM deliveries
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} GROUP BY kind)
SELECT kind, toUnixTimestamp64Milli(any(firsts.first)), toUnixTimestamp64Milli(max(latest)), sum(of_partition)
FROM (
  SELECT kind, max(time) AS latest, groupBitmapMerge(devices) AS of_partition FROM push_outcomes
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
  GROUP BY kind, msgid, partition) AS parts
INNER JOIN firsts USING kind
GROUP BY kind
"""
_REASONS = """
SELECT kind, reason, sum(devices) AS total
FROM (
  SELECT kind, reason, groupBitmap(number) AS devices FROM deliveries
  WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND reason != ''
  GROUP BY kind, reason, msgid, partition)
GROUP BY kind, reason ORDER BY total DESC, reason LIMIT 10 BY kind
"""


async def audit_push(clickhouse: ClickHouse, msgid: int, zone: ZoneInfo, token: str = "") -> AuditPushResponse:
    """The push that has this message id, its first one or another of its list. NotFoundError: there is none.

    For another one of a list, the entries of that message alone follow, each named `message ...`, and the states are
    those of that message. With a token the answer says too what the push was to that device.
    """
    sent = await find_push(clickhouse, "pushes", msgid)
    push = sent or await find_push(clickhouse, "task_pushes", msgid)
    if push is None:
        raise no_such_push(msgid)
    whole = await _states(clickhouse, push, push.msgid, push.last_msgid)
    partitions = {event: numbers for event, *numbers in await _of_push(clickhouse, _PARTITIONS, push)}
    entries = [
        *await _task_entries(clickhouse, push, zone),
        *([_command(sent)] if sent else []),
        *_partition_entries(partitions, zone),
        *_repeats(await _of_push(clickhouse, _REPEATED, push)),
        *(
            entry("cancel command", time_ms, detail=source(*origin))
            for time_ms, *origin in await _of_push(clickhouse, _CANCELS, push)
        ),
        *await _outcome_entries(clickhouse, push.appkey, push.msgid, push.last_msgid),
        *(await _message_entries(clickhouse, push.appkey, msgid) if msgid != push.msgid else []),
    ]
    return AuditPushResponse(
        msgid=push.msgid,
        appkey=push.appkey,
        kind=push.kind,
        audience=push.audience,
        audience_count=sum(count.devices for count in whole),
        request_json=await _request(clickhouse, push),
        timeline=in_order(entries),
        states=whole if msgid == push.msgid else await _states(clickhouse, push, msgid, msgid),
        partitions=await _sizes(clickhouse, push),
        device=await push_on_device(clickhouse, push, token, zone) if token else None,
    )


async def _states(clickhouse: ClickHouse, push: Push, first: int, last: int) -> list[StateCount]:
    of_push = (clickhouse, push.appkey, push.msgid, push.platform)
    return await states(*of_push, is_listed=push.kind == "unicast", first=first, last=last)


async def _sizes(clickhouse: ClickHouse, push: Push) -> list[PartitionSize]:
    sql = _SIZES_OF_LIST if push.kind == "unicast" else _SIZES
    rows = await _of_push(clickhouse, sql, push)
    return [PartitionSize(partition=partition, devices=devices) for partition, devices in rows]


async def _of_push(clickhouse: ClickHouse, sql: str, push: Push) -> Sequence[Sequence[Any]]:
    return await clickhouse.rows(sql, {"msgid": push.msgid, "appkey": push.appkey})


async def _request(clickhouse: ClickHouse, push: Push) -> str:
    """The request as accepted; it stands at the first of the pushes that one request made."""
    if push.request_json or not push.request_id:
        return push.request_json
    for table in ("pushes", "task_pushes"):
        rows = await clickhouse.rows(_REQUEST, {"table": table, "request_id": push.request_id})
        if rows:
            return str(rows[0][0])
    return ""


def _command(push: Push) -> TimelineEntry:
    task = f"task {push.task_key}" if push.task_key else ""
    return entry("command", push.time_ms, detail=joined(f"accepted {push.source}".strip(), task))


async def _task_entries(clickhouse: ClickHouse, push: Push, zone: ZoneInfo) -> list[TimelineEntry]:
    if not push.task_key:
        return []
    rows = await clickhouse.rows(_TASK, {"task_key": push.task_key})
    return [
        entry(f"task {event}", time_ms, detail=_task_detail(push.task_key, event, due_ms, source(*origin), zone))
        for event, time_ms, due_ms, *origin in rows
    ]


def _task_detail(task_key: str, event: str, due_ms: int, where: str, zone: ZoneInfo) -> str:
    due = f"due {moment(due_ms, zone)}" if event == "scheduled" else ""
    return joined(f"task {task_key}", due, where)


def _partition_entries(partitions: dict[str, list[int]], zone: ZoneInfo) -> list[TimelineEntry]:
    entries = []
    started = partitions["started"][2] if "started" in partitions else 0
    for event, (first_ms, last_ms, count, devices, expires_ms) in partitions.items():
        match event:
            case "started":
                detail = joined(f"in {count} partition{'' if count == 1 else 's'}", f"until {moment(expires_ms, zone)}")
                entries.append(entry("audience", first_ms, last_ms, devices, detail))
            case "cancelled":
                entries.append(entry("push cancelled", first_ms, last_ms, count, f"in {count} of {started} partitions"))
            case _:
                entries.append(entry(event, first_ms, last_ms, count, f"in {count} of {started} partitions"))
    return entries


def _repeats(rows: Sequence[Sequence[Any]]) -> list[TimelineEntry]:
    """Records that stand in the log more than once, as after a restart; each counts once."""
    return [
        entry(f"{_REPEATED_AS[event]} again", first_ms, last_ms, again, _counted_once(event, partitions))
        for event, first_ms, last_ms, again, partitions in rows
    ]


def _counted_once(event: str, partitions: int) -> str:
    where = "" if event == "command" else f"in {partitions} partition{'' if partitions == 1 else 's'}, "
    return f"{where}the log has the record more than once; it counted once"


async def _outcome_entries(clickhouse: ClickHouse, appkey: str, first: int, last: int) -> list[TimelineEntry]:
    parameters = {"appkey": appkey, "first": first, "last": last}
    reasons: dict[str, list[str]] = {}
    for kind, reason, devices in await clickhouse.rows(_REASONS, parameters):
        reasons.setdefault(kind, []).append(f"{reason}: {devices}")
    return [
        entry(kind, first_ms, last_ms, devices, joined(*reasons.get(kind, [])))
        for kind, first_ms, last_ms, devices in await clickhouse.rows(_OUTCOMES, parameters)
    ]


async def _message_entries(clickhouse: ClickHouse, appkey: str, msgid: int) -> list[TimelineEntry]:
    entries = await _outcome_entries(clickhouse, appkey, msgid, msgid)
    for one in entries:
        one.event = f"message {one.event}"
        one.detail = joined(f"message {msgid}", one.detail)
    return entries
