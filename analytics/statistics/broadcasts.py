"""How far broadcasts and multicasts came: who is in the audience, whom they reached, and how it ended for the others.

A device that reported a later step took the earlier ones too. Of the devices that are done with the push, which
for Android is having received it and for iOS having been sent it, none is failed, expired or cancelled; every other
device of the audience is at most one of these, or is still waited for.

With a category, each device counts under what was known of it when the start of the push was taken in; so the values
add up to the audience. Of a push that is older than its outcomes are kept the audience alone is told.
"""

from collections.abc import Sequence

from analytics.statistics.question import Question
from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import outlived_days
from protos.analytics.v1.analytics_pb2 import BroadcastRow
from services.runtime.errors import NotFoundError

LISTED_DAYS_MS = 30 * 86_400_000
_LIST = """
SELECT msgid, toUnixTimestamp64Milli(min(time)) AS sent_ms, any(platform)
FROM broadcasts WHERE appkey = {appkey:String} AND time > fromUnixTimestamp64Milli({since_ms:Int64})
GROUP BY msgid ORDER BY sent_ms DESC, msgid DESC LIMIT 1000
"""
_ONE = """
SELECT msgid, toUnixTimestamp64Milli(time), platform FROM pushes FINAL
WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} AND kind != 'unicast'
"""

_PARTS = """
WITH parts AS (
  SELECT msgid, partition,
    has({ios:Array(UInt64)}, msgid) AS is_ios,
    max(event = 'cancelled') AS is_cancelled, max(event = 'finished') AS is_finished,
    groupBitmapMergeStateIf(devices, event = 'audience') AS audience,
    groupBitmapMergeStateIf(devices, event = 'clicked') AS clicked,
    groupBitmapMergeStateIf(devices, event IN ('shown', 'clicked', 'dismissed')) AS shown,
    groupBitmapMergeStateIf(devices, event IN ('received', 'shown', 'clicked', 'dismissed')) AS received,
    groupBitmapMergeStateIf(devices, event IN ('sent', 'received', 'shown', 'clicked', 'dismissed')) AS sent,
    if(is_ios, sent, received) AS done,
    groupBitmapMergeStateIf(devices, event IN ('failed', 'dropped')) AS failed,
    groupBitmapMergeStateIf(devices, event = 'expired') AS expired,
    groupBitmapMergeStateIf(devices, event = 'cancelled_device') AS cancelled
  FROM (
    SELECT msgid, partition, 'audience' AS event, devices FROM push_audiences
    WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)}
    UNION ALL
    SELECT msgid, partition, if(kind = 'cancelled', 'cancelled_device', toString(kind)) AS event, devices
    FROM push_outcomes WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)}
    UNION ALL
    SELECT msgid, partition, toString(event) AS event, bitmapBuild(emptyArrayUInt32()) AS devices FROM push_partitions
    WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} AND event IN ('cancelled', 'finished'))
  GROUP BY msgid, partition)
"""
_COUNTS = """
  sum(bitmapCardinality(target)) AS targets,
  sum(bitmapAndCardinality(target, sent)),
  sum(bitmapAndCardinality(target, received)),
  sum(bitmapAndCardinality(target, shown)),
  sum(bitmapAndCardinality(target, clicked)),
  sum(bitmapAndCardinality(target, failed_only)),
  sum(bitmapAndCardinality(target, expired_only) + if(is_finished AND NOT is_cancelled, unsettled, 0)),
  sum(bitmapAndCardinality(target, cancelled_only) + if(is_cancelled, unsettled, 0))
"""
_ENDS = """
  bitmapAndnot(failed, done) AS failed_only,
  bitmapOr(done, failed) AS done_or_failed,
  bitmapAndnot(cancelled, done_or_failed) AS cancelled_only,
  bitmapOr(done_or_failed, cancelled) AS done_failed_or_cancelled,
  bitmapAndnot(expired, done_failed_or_cancelled) AS expired_only,
  bitmapOr(done_failed_or_cancelled, expired) AS settled
"""
_UNSETTLED = "if(is_finished OR is_cancelled, bitmapAndnotCardinality(target, settled), 0) AS unsettled"
_WHOLE = f"""
{_PARTS}
SELECT msgid, {_COUNTS}
FROM (SELECT *, audience AS target, {_ENDS}, {_UNSETTLED} FROM parts) GROUP BY msgid
"""  # noqa: S608
_BY_VALUE = f"""
{_PARTS},
ended AS (
  SELECT partition, sent, received, shown, clicked, is_finished, is_cancelled, {_ENDS} FROM parts),
values AS (
  SELECT partition, one.1 AS info, CAST(one.2, 'AggregateFunction(groupBitmap, UInt32)') AS target
  FROM (
    SELECT partition, {{column:Identifier}} AS of_value FROM push_values FINAL
    WHERE appkey = {{appkey:String}} AND msgid IN {{msgids:Array(UInt64)}})
  ARRAY JOIN arrayZip(mapKeys(of_value), mapValues(of_value)) AS one
  WHERE NOT {{is_one:Bool}} OR info = {{info:String}})
SELECT info, {_COUNTS}
FROM (SELECT *, {_UNSETTLED} FROM values INNER JOIN ended USING partition)
GROUP BY info ORDER BY info
"""  # noqa: S608
_COLUMNS = ("target", "sent", "received", "shown", "clicked", "failed", "expired", "cancelled")


async def broadcasts(clickhouse: ClickHouse, question: Question) -> list[BroadcastRow]:
    """The list, newest first; or the one that was asked for, with a category a row a value. NotFoundError: no such."""
    if question.msgid is None:
        since_ms = question.now_ms - LISTED_DAYS_MS
        sent = await clickhouse.rows(_LIST, {"appkey": question.appkey, "since_ms": since_ms})
        return await _whole(clickhouse, question.appkey, sent)
    sent = await clickhouse.rows(_ONE, {"appkey": question.appkey, "msgid": question.msgid})
    if not sent:
        raise NotFoundError(f"no broadcast of this app has the message id {question.msgid}")
    if question.category:
        rows = await _by_value(clickhouse, question, sent[0])
    else:
        rows = await _whole(clickhouse, question.appkey, sent)
    if await outlived_days(clickhouse, question.appkey, question.msgid):
        return [BroadcastRow(msgid=row.msgid, sent_ms=row.sent_ms, info=_info(row), target=row.target) for row in rows]
    return rows


async def _whole(clickhouse: ClickHouse, appkey: str, sent: Sequence[Sequence[object]]) -> list[BroadcastRow]:
    if not sent:
        return []
    found = await clickhouse.rows(_WHOLE, _pushes(appkey, sent))
    counts = {msgid: of_push for msgid, *of_push in found}
    return [_row(push, counts.get(push[0], ())) for push in sent]


async def _by_value(clickhouse: ClickHouse, question: Question, push: Sequence[object]) -> list[BroadcastRow]:
    parameters = {
        **_pushes(question.appkey, [push]),
        "column": question.category,
        "is_one": question.info is not None,
        "info": question.info or "",
    }
    rows = [_row(push, counts, info) for info, *counts in await clickhouse.rows(_BY_VALUE, parameters)]
    return rows if question.info is None or rows else [_row(push, (), question.info)]


def _pushes(appkey: str, sent: Sequence[Sequence[object]]) -> dict[str, object]:
    return {
        "appkey": appkey,
        "msgids": [msgid for msgid, _, _ in sent],
        "ios": [msgid for msgid, _, platform in sent if platform == "ios"],
    }


def _info(row: BroadcastRow) -> str | None:
    return row.info if row.HasField("info") else None


def _row(push: Sequence[object], counts: Sequence[int], info: str | None = None) -> BroadcastRow:
    msgid, sent_ms, _ = push
    of_columns = dict(zip(_COLUMNS, counts, strict=False))
    return BroadcastRow(msgid=msgid, sent_ms=sent_ms, info=info, **of_columns)  # type: ignore[arg-type]
