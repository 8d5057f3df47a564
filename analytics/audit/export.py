"""What became of a push on each device of its audience, as a file that ClickHouse writes."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from analytics.audit.find_push import Push
from analytics.audit.push_states import LADDER, LADDER_IOS, UNKNOWN, states
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import ExportFormat

FORMATS = {ExportFormat.EXPORT_FORMAT_CSV: "CSVWithNames", ExportFormat.EXPORT_FORMAT_PARQUET: "Parquet"}

_HAPPENED = ("sent", "received", "shown", "clicked", "dismissed", "failed", "dropped", "cancelled", "expired")
_SETTINGS = (
    "SETTINGS engine_file_truncate_on_insert = 1, max_bytes_before_external_group_by = 268435456,"
    " join_algorithm = 'grace_hash', max_bytes_in_join = 268435456, max_threads = 2,"
    " output_format_parquet_row_group_size = 100000, output_format_parquet_string_as_string = 1"
)
"""What is too much for the memory goes to the disk."""


class Export(NamedTuple):
    """The rows that the file has, and its pieces; nothing is written before the first is asked for."""

    rows: int
    pieces: AsyncIterator[bytes]


@asynccontextmanager
async def export(
    clickhouse: ClickHouse, push: Push, msgid: int, file_format: str, zone: ZoneInfo
) -> AsyncIterator[Export]:
    """The whole push, or the one message of its list; `file_format` is one of FORMATS' values."""
    first, last = (push.msgid, push.last_msgid) if msgid == push.msgid else (msgid, msgid)
    is_listed = push.kind == "unicast"
    of_push = (clickhouse, push.appkey, push.msgid, push.platform)
    counts = await states(*of_push, is_listed=is_listed, first=first, last=last)
    parameters: dict[str, Any] = {
        **{"appkey": push.appkey, "push": push.msgid, "is_listed": is_listed, "first": first, "last": last},
        **{"zone": zone.key, "is_unknown": any(count.state == UNKNOWN for count in counts)},
    }
    sql = _sql(push.platform == "ios") + _SETTINGS
    async with aclosing(_pieces(clickhouse, sql, parameters, file_format)) as pieces:
        yield Export(sum(count.devices for count in counts), pieces)


async def _pieces(
    clickhouse: ClickHouse, sql: str, parameters: Mapping[str, Any], file_format: str
) -> AsyncGenerator[bytes, None]:
    async with clickhouse.file(sql, parameters, file_format) as pieces:
        async for piece in pieces:
            yield piece


def _sql(is_ios: bool) -> str:
    ladder = LADDER_IOS if is_ios else LADDER
    steps = ", ".join(f"has(kinds, '{state}'), '{state}'" for state in ladder)
    times = ", ".join(
        f"if({kind}_ms = 0, NULL, fromUnixTimestamp64Milli({kind}_ms, {{zone:String}})) AS {kind}" for kind in _HAPPENED
    )
    first_times = ", ".join(f"minIf(time_ms, kind = '{kind}') AS {kind}_ms" for kind in _HAPPENED)
    return f"""
WITH
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {{appkey:String}} AND msgid = {{push:UInt64}} AND event = 'cancelled') AS cancelled_in,
(SELECT groupUniqArray(partition) FROM push_partitions
 WHERE appkey = {{appkey:String}} AND msgid = {{push:UInt64}} AND event = 'finished') AS finished_in
SELECT known.token AS token, number, partition, msgid,
  multiIf({{is_unknown:Bool}}, '{UNKNOWN}', {steps}, has(cancelled_in, partition), 'cancelled',
    has(finished_in, partition), 'expired', has(kinds, 'sent'), 'sent', 'pending') AS state,
  arrayFirst(r -> r.1 = state, reasons).2 AS reason, {times}
FROM (
  SELECT partition, number, msgid, groupUniqArray(if(kind = 'dismissed', 'shown', kind)) AS kinds,
    arrayMap(r -> (r.1, r.2), arraySort(r -> (r.3, r.4),
      groupArrayIf((kind, reason, _offset, _index), reason != ''))) AS reasons,
    {first_times}
  FROM ({_ROWS}) GROUP BY partition, number, msgid HAVING has(kinds, 'audience')) AS happened
LEFT JOIN (
  SELECT partition, number, any(token) AS token FROM device_tokens
  WHERE appkey = {{appkey:String}} GROUP BY partition, number) AS known USING (partition, number)
"""  # noqa: S608


_ROWS = """
SELECT partition, number, msgid, toString(kind) AS kind, toString(reason) AS reason,
  toUnixTimestamp64Milli(time) AS time_ms, _offset, _index
FROM deliveries WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64}
UNION ALL
SELECT partition, arrayJoin(bitmapToArray(devices)) AS number, msgid, 'audience' AS kind, '' AS reason,
  toInt64(0) AS time_ms, toUInt64(0) AS _offset, toUInt32(0) AS _index
FROM push_audiences
WHERE appkey = {appkey:String} AND msgid = {push:UInt64} AND NOT {is_listed:Bool}
UNION ALL
SELECT target.1 AS partition, target.2 AS number, of_push + target.3 AS msgid, 'audience' AS kind, '' AS reason,
  toInt64(0) AS time_ms, toUInt64(0) AS _offset, toUInt32(0) AS _index
FROM (SELECT pushes.msgid AS of_push, arrayJoin(arrayZip(target_partitions, target_numbers, target_offsets)) AS target
  FROM pushes WHERE msgid = {push:UInt64} AND appkey = {appkey:String} AND {is_listed:Bool})
WHERE of_push + target.3 BETWEEN {first:UInt64} AND {last:UInt64}
"""
