"""Counts of broadcasts and multicasts: their audience, the devices they reached, and how they ended for the others.

A device that reported a later step counts for the earlier ones too. A device is done with a push when it has received
it (Android) or when it was sent to it (iOS). A device that is done counts as none of failed, expired and cancelled;
any other device of the audience counts as at most one of them, or is still pending.

With a category, a device counts under the value it had when the start of the push was ingested, so the values add up to
the audience. If the outcomes of a push have outlived their retention, only its audience is counted.
"""

from collections.abc import Sequence
from typing import Any

from analytics.statistics.broadcast_counts import SentPush, broadcast_counts
from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import expired_outcome_days
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import BroadcastRow
from services.domain.statistics.rows import BROADCAST_COUNTS
from services.runtime.errors import NotFoundError

LISTED_DAYS_MS = 30 * 86_400_000
_ONE = """
SELECT msgid, toUnixTimestamp64Milli(time), platform FROM pushes FINAL
WHERE msgid = {msgid:UInt64} AND appkey = {appkey:String} AND kind != 'unicast'
"""


async def broadcasts(clickhouse: ClickHouse, query: StatisticsQuery) -> list[BroadcastRow]:
    """Return the list, newest first; or the broadcast of a message id, with a category one row for each value.

    NotFoundError: the app has no broadcast with the message id.
    """
    if query.msgid is None:
        since_ms = query.now_ms - LISTED_DAYS_MS
        found = await clickhouse.rows(
            sql(__package__, "broadcast_list"), {"appkey": query.appkey, "since_ms": since_ms}
        )
        return await counted(clickhouse, [SentPush(query.appkey, *row) for row in found])
    found = await clickhouse.rows(_ONE, {"appkey": query.appkey, "msgid": query.msgid})
    if not found:
        raise NotFoundError(f"no broadcast of this app has the message id {query.msgid}")
    push = SentPush(query.appkey, *found[0])
    rows = await _by_value(clickhouse, query, push) if query.category else await counted(clickhouse, [push])
    if await expired_outcome_days(clickhouse, query.appkey, query.msgid):
        return [BroadcastRow(msgid=row.msgid, sent_ms=row.sent_ms, info=_info(row), target=row.target) for row in rows]
    return rows


async def counted(clickhouse: ClickHouse, pushes: Sequence[SentPush]) -> list[BroadcastRow]:
    """Return the counts of each push, in the same order."""
    counts = await broadcast_counts(clickhouse, pushes)
    return [_row(push, counts.get(push.msgid, {}).get("", ())) for push in pushes]


async def _by_value(clickhouse: ClickHouse, query: StatisticsQuery, push: SentPush) -> list[BroadcastRow]:
    counts = await broadcast_counts(clickhouse, [push], query.category)
    of_values = counts.get(push.msgid, {})
    infos = sorted(of_values) if query.info is None else [query.info]
    return [_row(push, of_values.get(info, ()), info) for info in infos]


def _info(row: BroadcastRow) -> str | None:
    return row.info if row.HasField("info") else None


def _row(push: SentPush, counts: Sequence[int], info: str | None = None) -> BroadcastRow:
    of_columns: Any = dict(zip(BROADCAST_COUNTS, counts, strict=False))
    return BroadcastRow(msgid=push.msgid, sent_ms=push.sent_ms, info=info, **of_columns)
