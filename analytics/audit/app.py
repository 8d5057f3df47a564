"""Who did what with an app: pushes, cancels, timed tasks, settings, and changes of devices."""

from typing import NamedTuple

from analytics.audit.timeline import entry, joined, source
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import AuditAppResponse, TimelineEntry
from services.runtime.errors import InputError

_SPAN = """
appkey = {appkey:String} AND time >= fromUnixTimestamp64Milli({from_ms:Int64})
  AND time < fromUnixTimestamp64Milli({to_ms:Int64})
"""
_BY = "writer, door, address, request_id"
_PUSHES = f"""
SELECT toUnixTimestamp64Milli(time) AS time_ms, concat('push ', toString(msgid)) AS id, 'push' AS event,
  if(kind = 'unicast', length(target_numbers), sizes.devices) AS devices,
  concat('push ', toString(msgid), ', ', kind, ', ', audience, if(task_key = '', '', concat(', task ', task_key)))
    AS what,
  {_BY}
FROM (SELECT * FROM pushes FINAL WHERE {_SPAN}) AS asked
LEFT JOIN (
  SELECT msgid, sum(count) AS devices FROM push_partitions FINAL
  WHERE appkey = {{appkey:String}} AND event = 'started' GROUP BY msgid) AS sizes USING (msgid)
"""  # noqa: S608
_CANCELS = f"""
SELECT toUnixTimestamp64Milli(time) AS time_ms, concat('cancel ', hex(_event_id)) AS id, 'cancel push' AS event,
  1 AS devices, concat('push ', toString(msgid)) AS what, {_BY}
FROM push_cancels FINAL WHERE {_SPAN}
"""  # noqa: S608
_TASKS = f"""
SELECT toUnixTimestamp64Milli(time) AS time_ms, concat('task ', task_key, ' ', event) AS id,
  concat('task ', tasks.event) AS event, 1 AS devices, concat('task ', task_key) AS what, {_BY}
FROM tasks FINAL
WHERE tasks.event IN ('scheduled', 'cancelled')
  AND task_key IN (SELECT task_key FROM task_pushes WHERE appkey = {{appkey:String}})
  AND time >= fromUnixTimestamp64Milli({{from_ms:Int64}}) AND time < fromUnixTimestamp64Milli({{to_ms:Int64}})
"""  # noqa: S608
_SETTINGS = f"""
SELECT toUnixTimestamp64Milli(time) AS time_ms, concat('app ', hex(_event_id)) AS id, concat('app ', action) AS event,
  1 AS devices, detail AS what, {_BY}
FROM app_changes FINAL WHERE {_SPAN}
"""  # noqa: S608
_REQUESTS = f"""
SELECT toUnixTimestamp64Milli(min(time)) AS time_ms, concat('command ', command, ' ', request_id) AS id,
  command AS event, count() AS devices, '' AS what, {_BY}
FROM device_commands FINAL
WHERE {_SPAN} AND (command LIKE 'revoke%' OR command IN ('add stags', 'remove stags') AND door = 'v2')
GROUP BY command, {_BY}
"""  # noqa: S608
_DEVICES = f"""
SELECT toUnixTimestamp64Milli(min(time)) AS time_ms,
  concat('hour ', toString(toStartOfHour(time)), ' ', command, ' ', writer, ' ', door) AS id,
  command AS event, count() AS devices, 'in this hour' AS what, writer, door, '' AS address, '' AS request_id
FROM device_commands FINAL
WHERE {_SPAN} AND command NOT LIKE 'revoke%' AND NOT (command IN ('add stags', 'remove stags') AND door = 'v2')
GROUP BY toStartOfHour(time), command, writer, door
"""  # noqa: S608
_UNION = " UNION ALL ".join((_PUSHES, _CANCELS, _TASKS, _SETTINGS, _REQUESTS, _DEVICES))
_PAGE = f"""
SELECT time_ms, id, event, devices, what, {_BY} FROM ({_UNION})
WHERE (time_ms, id) > ({{after_ms:Int64}}, {{after:String}}) ORDER BY time_ms, id LIMIT {{limit:UInt32}}
"""  # noqa: S608


class Span(NamedTuple):
    """From a moment on, up to another without it; milliseconds since 1970 UTC."""

    from_ms: int
    to_ms: int


async def audit_app(clickhouse: ClickHouse, appkey: str, span: Span, pos: str, limit: int) -> AuditAppResponse:
    """A page, ascending by time. InputError: no page gave this position."""
    after_ms, after = _position(pos)
    parameters = {"appkey": appkey, **span._asdict(), "after_ms": after_ms, "after": after, "limit": limit + 1}
    rows = await clickhouse.rows(_PAGE, parameters)
    page = rows[:limit]
    following = f"{page[-1][0]}/{page[-1][1]}" if len(rows) > limit else ""
    return AuditAppResponse(timeline=[_line(*row) for row in page], pos=following)


def _line(time_ms: int, _: str, event: str, count: int, what: str, *origin: str) -> TimelineEntry:
    return entry(event, time_ms, count=count, detail=joined(what, source(*origin)))


def _position(pos: str) -> tuple[int, str]:
    if not pos:
        return -1, ""
    time_ms, _, row = pos.partition("/")
    if not time_ms.isascii() or not time_ms.isdecimal() or len(time_ms) > 15 or not row:
        raise InputError("pos is not a position that a page gave")
    return int(time_ms), row
