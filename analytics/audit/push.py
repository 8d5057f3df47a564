"""The audit of one push: its timeline, states, sizes and, for one device, its outcome there."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from analytics.audit.details import channels, origins, reasons, texts
from analytics.audit.find_push import PushRecord, find_planned, find_push, no_such_push
from analytics.audit.push_on_device import push_on_device
from analytics.audit.states import state_counts
from analytics.audit.timeline import by_time, entry
from analytics.statistics.broadcasts import channel_rows, with_the_rest
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import (
    AuditPushResponse,
    ChannelCounts,
    PartitionSize,
    StateCount,
    TimelineEntry,
)
from protos.analytics.v1.details_pb2 import Detail, PartitionCount, ReasonCount, Remark
from services.domain.statistics_rows import APPLE, OWN

# The pauses that held while a push could be sent: why it waited, in the push's timeline.


class _Change(NamedTuple):
    """A pause or its end; `appkey` is empty for all apps at once, `reason` is the operator's."""

    appkey: str
    action: str
    time_ms: int
    reason: str
    origin: tuple[str, ...]


async def pause_entries(clickhouse: ClickHouse, appkey: str, from_ms: int, until_ms: int) -> list[TimelineEntry]:
    """Return the pauses and resumes of the app and of all apps whose pause held at some time in the span.

    A pause from before the span is included if it still held at its start.
    """
    rows = await clickhouse.rows(sql(__package__, "pauses"), {"appkey": appkey, "until_ms": until_ms})
    changes = [_Change(of, action, time_ms, reason, tuple(origin)) for of, action, time_ms, reason, *origin in rows]
    before = {change.appkey: change for change in changes if change.time_ms < from_ms}
    holding = [change for change in before.values() if change.action == "paused"]
    return list(_entries([*holding, *(change for change in changes if change.time_ms >= from_ms)]))


def _entries(changes: Iterable[_Change]) -> Iterable[TimelineEntry]:
    for change in changes:
        whose = "app" if change.appkey else "all apps"
        details = [*texts(change.reason), *origins(*change.origin)]
        yield entry(f"{whose} {change.action}", change.time_ms, details=details)


_REQUEST = """
SELECT request_json FROM {table:Identifier}
WHERE request_id = {request_id:String} AND request_json != '' ORDER BY msgid LIMIT 1
"""
_TASK = """
SELECT event, toUnixTimestamp64Milli(time), toUnixTimestamp64Milli(due), reason, writer, interface, address,
  request_id
FROM tasks FINAL WHERE task_key = {task_key:String}
"""
_CANCELS = """
SELECT toUnixTimestamp64Milli(time), writer, interface, address, request_id
FROM push_cancels FINAL WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} ORDER BY time
"""
_PARTITIONS = """
SELECT event, toUnixTimestamp64Milli(min(time)), toUnixTimestamp64Milli(max(time)), count(), sum(count),
  toUnixTimestamp64Milli(max(expires)), max(reason)
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
_IS_SERVED = """
SELECT count() FROM push_channels WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
"""
_FAR_FUTURE_MS = 4_000_000_000_000
_REPEATED_NAMES = {
    "command": "command",
    "started": "audience",
    "cancelled": "push cancelled",
    "finished": "finished",
    "failed": "push failed",
}


async def audit_push(clickhouse: ClickHouse, msgid: int, zone: ZoneInfo, token: str = "") -> AuditPushResponse:
    """Audit the push that has this message id, as its first one or another of its list. NotFoundError: there is none.

    For another id of a list, the entries of that message alone are added, named `message ...`, and the states are of
    that message. With a token the answer also explains the push on that device.
    """
    sent = await find_push(clickhouse, "pushes", msgid)
    push = sent or await find_push(clickhouse, "task_pushes", msgid)
    if push is None:
        raise no_such_push(msgid)
    whole = await _state_counts(clickhouse, push, push.msgid, push.last_msgid)
    by_channel = await _channel_counts(clickhouse, push, push.msgid, push.last_msgid)
    of_message = by_channel if msgid == push.msgid else await _channel_counts(clickhouse, push, msgid, msgid)
    partitions = {event: numbers for event, *numbers in await _of_push(clickhouse, _PARTITIONS, push)}
    tasks = await _task_rows(clickhouse, push)
    entries = [
        *_task_entries(push, tasks),
        *await pause_entries(clickhouse, push.appkey, *_sending_span(push, tasks, partitions)),
        *([_command_entry(sent)] if sent else []),
        *_partition_entries(partitions),
        *_repeat_entries(await _of_push(clickhouse, sql(__package__, "repeated_records"), push)),
        *(
            entry("cancel command", time_ms, details=origins(*origin))
            for time_ms, *origin in await _of_push(clickhouse, _CANCELS, push)
        ),
        *await _outcome_entries(clickhouse, push.appkey, push.msgid, push.last_msgid, by_channel),
        *(await _message_entries(clickhouse, push.appkey, msgid, of_message) if msgid != push.msgid else []),
        *([entry("content erased", push.erased_ms)] if push.erased_ms else []),
    ]
    return AuditPushResponse(
        msgid=push.msgid,
        appkey=push.appkey,
        kind=push.kind,
        audience=push.audience,
        audience_summary=push.audience_summary,
        audience_count=sum(count.devices for count in whole),
        request_json=await _request(clickhouse, push),
        timeline=by_time(entries, zone),
        states=whole if msgid == push.msgid else await _state_counts(clickhouse, push, msgid, msgid),
        partitions=await _sizes(clickhouse, push),
        channels=of_message,
        device=await push_on_device(clickhouse, push, token, zone) if token else None,
    )


async def audit_push_on_device(clickhouse: ClickHouse, msgid: int, zone: ZoneInfo, token: str) -> AuditPushResponse:
    """Explain a push on one device, without the timeline, the states and the sizes. NotFoundError: no such push."""
    push = await find_planned(clickhouse, msgid)
    if push is None:
        raise no_such_push(msgid)
    return AuditPushResponse(
        msgid=push.msgid,
        appkey=push.appkey,
        kind=push.kind,
        audience=push.audience,
        audience_summary=push.audience_summary,
        request_json=await _request(clickhouse, push),
        device=await push_on_device(clickhouse, push, token, zone),
    )


async def _state_counts(clickhouse: ClickHouse, push: PushRecord, first: int, last: int) -> list[StateCount]:
    of_push = (clickhouse, push.appkey, push.msgid, push.platform)
    return await state_counts(*of_push, is_listed=push.kind == "unicast", first=first, last=last)


async def _channel_counts(clickhouse: ClickHouse, push: PushRecord, first: int, last: int) -> list[ChannelCounts]:
    """Return the counts by channel; none where no push service was handed any of the messages."""
    parameters = {"appkey": push.appkey, "first": first, "last": last}
    if not (await clickhouse.rows(_IS_SERVED, parameters))[0][0]:
        return []
    query = sql(__package__, "push_channels", events=sql(__package__, "push_events"))
    rows = await clickhouse.rows(query, {**parameters, "push": push.msgid, "is_listed": push.kind == "unicast"})
    (whole, *services) = channel_rows((channel, counts) for channel, *counts in rows)
    return with_the_rest(push.platform, whole, services)


async def _sizes(clickhouse: ClickHouse, push: PushRecord) -> list[PartitionSize]:
    rows = await _of_push(clickhouse, _SIZES_OF_LIST if push.kind == "unicast" else _SIZES, push)
    return [PartitionSize(partition=partition, devices=devices) for partition, devices in rows]


async def _of_push(clickhouse: ClickHouse, query: str, push: PushRecord) -> Sequence[Sequence[Any]]:
    return await clickhouse.rows(query, {"msgid": push.msgid, "appkey": push.appkey})


async def _request(clickhouse: ClickHouse, push: PushRecord) -> str:
    """Return the request as accepted; only the first of the pushes that one request made has it."""
    if push.request_json or not push.request_id:
        return push.request_json
    for table in ("pushes", "task_pushes"):
        rows = await clickhouse.rows(_REQUEST, {"table": table, "request_id": push.request_id})
        if rows:
            return str(rows[0][0])
    return ""


def _command_entry(push: PushRecord) -> TimelineEntry:
    task = [Detail(task=push.task_key)] if push.task_key else []
    return entry("command", push.time_ms, details=[Detail(accepted=push.origin), *task])


async def _task_rows(clickhouse: ClickHouse, push: PushRecord) -> Sequence[Sequence[Any]]:
    return await clickhouse.rows(_TASK, {"task_key": push.task_key}) if push.task_key else []


def _sending_span(
    push: PushRecord, tasks: Sequence[Sequence[Any]], partitions: dict[str, list[int]]
) -> tuple[int, int]:
    """Return the first and last ms in which the push was sent, from its acceptance or due time to its end."""
    due_ms = [due_ms for event, _, due_ms, *_ in tasks if event == "scheduled"]
    ended_ms = [partitions[event][1] for event in ("cancelled", "finished", "failed") if event in partitions]
    ended_ms += [time_ms for event, time_ms, *_ in tasks if event in ("cancelled", "expired", "failed")]
    return min(due_ms, default=push.time_ms), max(ended_ms, default=_FAR_FUTURE_MS)


def _task_entries(push: PushRecord, rows: Sequence[Sequence[Any]]) -> list[TimelineEntry]:
    return [
        entry(f"task {event}", time_ms, details=_task_details(push.task_key, event, due_ms, reason, origin))
        for event, time_ms, due_ms, reason, *origin in rows
    ]


def _task_details(task_key: str, event: str, due_ms: int, reason: str, origin: Sequence[str]) -> list[Detail]:
    due = [Detail(due_ms=due_ms)] if event == "scheduled" else []
    return [Detail(task=task_key), *due, *reasons(reason), *origins(*origin)]


def _partition_entries(partitions: dict[str, list[Any]]) -> list[TimelineEntry]:
    entries = []
    started = partitions["started"][2] if "started" in partitions else 0
    for event, (first_ms, last_ms, count, devices, expires_ms, reason) in partitions.items():
        match event:
            case "started":
                details = [_in_partitions(count), Detail(until_ms=expires_ms)]
                entries.append(entry("audience", first_ms, last_ms, devices, details))
            case "failed":
                details = [Detail(failed_partitions=count), *reasons(reason)]
                entries.append(entry("push failed", first_ms, last_ms, count, details))
            case _:
                name = "push cancelled" if event == "cancelled" else event
                where = _in_partitions(count, of=started if count <= started else 0)
                entries.append(entry(name, first_ms, last_ms, count, [where]))
    return entries


def _in_partitions(count: int, *, of: int = 0) -> Detail:
    return Detail(partitions=PartitionCount(count=count, of=of))


def _repeat_entries(rows: Sequence[Sequence[Any]]) -> list[TimelineEntry]:
    """Return entries of records that are in the log more than once, as after a restart; each record counts once."""
    return [
        entry(f"{_REPEATED_NAMES[event]} again", first_ms, last_ms, again, _counted_once(event, partitions))
        for event, first_ms, last_ms, again, partitions in rows
    ]


def _counted_once(event: str, partitions: int) -> list[Detail]:
    where = [] if event == "command" else [_in_partitions(partitions)]
    return [*where, Detail(remark=Remark.REMARK_COUNTED_ONCE)]


async def _outcome_entries(
    clickhouse: ClickHouse,
    appkey: str,
    first: int,
    last: int,
    by_channel: Sequence[ChannelCounts],
    about: Sequence[Detail] = (),
) -> list[TimelineEntry]:
    """Return an entry for each kind of outcome; the details of each begin with what it is `about`."""
    parameters = {"appkey": appkey, "first": first, "last": last}
    counts: dict[str, list[Detail]] = {}
    for kind, reason, devices in await clickhouse.rows(sql(__package__, "push_outcome_reasons"), parameters):
        counts.setdefault(kind, []).append(Detail(reason_count=ReasonCount(reason=reason, devices=devices)))
    for kind, via, simulated, devices in await clickhouse.rows(sql(__package__, "push_outcome_channels"), parameters):
        counts.setdefault(kind, []).extend(channels(via or APPLE, devices, simulated=simulated))
    for each in by_channel:
        if each.channel != OWN:
            kind = "sent" if each.channel == APPLE else "handed_over"
            counts.setdefault(kind, []).extend(channels(each.channel, each.sent, simulated=each.simulated))
    rows = await clickhouse.rows(sql(__package__, "push_outcomes"), parameters)
    return [
        entry(kind, first_ms, last_ms, devices, [*about, *counts.get(kind, [])])
        for kind, first_ms, last_ms, devices in rows
    ]


async def _message_entries(
    clickhouse: ClickHouse, appkey: str, msgid: int, by_channel: Sequence[ChannelCounts]
) -> list[TimelineEntry]:
    entries = await _outcome_entries(clickhouse, appkey, msgid, msgid, by_channel, [Detail(message=msgid)])
    for one in entries:
        one.event = f"message {one.event}"
    return entries
